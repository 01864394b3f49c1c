//! What a node keeps for each token that has a call under way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One `T` for each token; `None` stands for all callers without a token. A `T` that is no longer in use is forgotten.
pub(crate) struct PerToken<T> {
    tokens: Mutex<HashMap<Option<i64>, Arc<T>>>,
}

impl<T> Default for PerToken<T> {
    fn default() -> PerToken<T> {
        PerToken { tokens: Mutex::default() }
    }
}

impl<T> PerToken<T> {
    /// The one of this token, which is made if there is none.
    pub(crate) fn of(&self, token: Option<i64>, make: impl FnOnce() -> T) -> Arc<T> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if !tokens.contains_key(&token) {
            // Tokens without a call under way; there are at most as many entries as calls.
            tokens.retain(|_, of_token| Arc::strong_count(of_token) > 1);
        }
        tokens.entry(token).or_insert_with(|| Arc::new(make())).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_token_holds_is_forgotten_when_its_calls_have_ended() {
        let tokens = PerToken::default();
        let first = tokens.of(Some(1), || "first");
        assert_eq!(*tokens.of(Some(1), || "again"), "first");
        drop(first);
        assert_eq!(*tokens.of(None, || "no token"), "no token");
        assert_eq!(*tokens.of(Some(1), || "again"), "again");
    }
}
