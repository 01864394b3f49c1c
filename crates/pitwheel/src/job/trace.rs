//! Trace context (W3C), carried in a job's metadata from the enqueue to the handler.

use serde::Deserialize;

/// The trace that a job belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TraceContext {
    /// The value of the header `traceparent`: version, trace id, parent id, flags.
    pub traceparent: String,
    /// The value of the header `tracestate`, if there was one.
    #[serde(default)]
    pub tracestate: Option<String>,
}

/// A longer `tracestate` is dropped, as the standard allows.
const TRACESTATE_MAX: usize = 512;

impl TraceContext {
    /// From the values of the headers; `None` when the `traceparent` is not well formed.
    pub fn new(traceparent: &str, tracestate: Option<&str>) -> Option<TraceContext> {
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let parts: Vec<&str> = traceparent.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        if lengths != [2, 32, 16, 2] || !parts.iter().all(|part| is_hex(part)) || parts[0] == "ff" {
            return None;
        }
        let is_plain = |state: &&str| {
            state.len() <= TRACESTATE_MAX && state.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let tracestate = tracestate.filter(is_plain).map(str::to_owned);
        Some(TraceContext { traceparent: traceparent.to_owned(), tracestate })
    }

    /// The trace context in a job's metadata, if there is one.
    pub fn of(metadata: Option<&str>) -> Option<TraceContext> {
        let found: TraceContext =
            serde_json::from_str(metadata.filter(|text| text.contains("traceparent"))?).ok()?;
        TraceContext::new(&found.traceparent, found.tracestate.as_deref())
    }

    /// The metadata with this trace context added, every other byte unchanged. A trace context that is already there is kept,
    /// and metadata that is not an object is not changed.
    pub(crate) fn put_into(&self, metadata: Option<String>) -> String {
        let ours = match &self.tracestate {
            None => format!(r#""traceparent":"{}""#, self.traceparent),
            Some(state) => {
                format!(
                    r#""traceparent":"{}","tracestate":{}"#,
                    self.traceparent,
                    serde_json::Value::from(&**state)
                )
            }
        };
        let Some(metadata) = metadata else { return format!("{{{ours}}}") };
        match metadata.trim_start().strip_prefix('{') {
            Some(_) if metadata.contains(r#""traceparent""#) => metadata,
            Some(rest) if rest.trim_start().starts_with('}') => format!("{{{ours}{rest}"),
            Some(rest) => format!("{{{ours},{rest}"),
            None => metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_put_in_comes_out() {
        let trace = TraceContext::new(PARENT, Some(r#"a=1,b="2""#)).expect("it is well formed");
        for metadata in [None, Some("{}"), Some(r#" { "a" : 1e3 } "#)] {
            let text = trace.put_into(metadata.map(str::to_owned));
            assert_eq!(TraceContext::of(Some(&text)), Some(trace.clone()), "{text}");
        }
        assert!(trace.put_into(Some(r#"{"a":1e3}"#.to_owned())).ends_with(r#","a":1e3}"#), "byte for byte");
        assert_eq!(trace.put_into(Some("[1]".to_owned())), "[1]");
    }

    #[test]
    fn what_is_not_well_formed_is_left_out() {
        for wrong in
            ["", "00", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", &PARENT.to_uppercase()]
        {
            assert_eq!(TraceContext::new(wrong, None), None, "{wrong}");
        }
        assert_eq!(TraceContext::of(Some(r#"{"traceparent":7}"#)), None);
        let trace = TraceContext::new(PARENT, Some("a=\u{7f}")).expect("the parent is well formed");
        assert_eq!(trace.tracestate, None);
    }
}
