//! `pitwheel tokens`: who may come in from other machines, and what for.

use std::time::{Duration, SystemTime};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use pitwheel::{Role, Token};
use pitwheel_server::views::TokenLine;
use serde::Serialize;
use serde_json::json;

use crate::database;
use crate::exit::Stop;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, say};
use crate::settings::Settings;
use crate::time::{parse_span, relative};

#[derive(Debug, Subcommand)]
pub(crate) enum TokensCommand {
    /// Make a token and print its secret, this once: it is kept nowhere.
    ///
    /// Roles: a viewer sees jobs, queues and workers, an operator changes them, too, and an admin may
    /// do everything; a worker runs jobs and enqueues, a producer enqueues.
    ///
    /// Example, for a worker, and for a pipeline whose token ends by itself:
    ///   pitwheel tokens create mailer --role worker > mailer.token
    ///   pitwheel tokens create ci --role producer --expires 30d
    #[command(verbatim_doc_comment)]
    Create(CreateArgs),

    /// List the tokens that were not revoked, without their secrets.
    ///
    /// Example:
    ///   pitwheel tokens list
    #[command(verbatim_doc_comment)]
    List,

    /// Revoke a token: within two seconds every server refuses it and ends its streams.
    ///
    /// Example:
    ///   pitwheel tokens revoke ci
    #[command(verbatim_doc_comment)]
    Revoke {
        /// The token
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What you will know it by, also in the audit log
    name: String,
    /// What it is good for
    #[arg(long, value_parser = PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(|word| word.parse::<Role>()))]
    role: Role,
    /// How long it is good, as 12h or 30d [default: until it is revoked]
    #[arg(long, value_name = "SPAN", value_parser = parse_lifetime)]
    expires: Option<Duration>,
}

/// A token that nobody could use is a mistake.
fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    if span.is_zero() { Err("it is zero".to_owned()) } else { Ok(span) }
}

/// A token that was made.
#[derive(Debug, Serialize)]
struct Made {
    #[serde(flatten)]
    token: TokenLine,
    secret: String,
}

pub(crate) async fn run(command: TokensCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        TokensCommand::Create(args) => create(&args, settings).await,
        TokensCommand::List => list(settings).await,
        TokensCommand::Revoke { name } => revoke(&name, settings).await,
    }
}

async fn create(args: &CreateArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let expires_at = match args.expires {
        Some(span) => Some(database::later(&pitwheel, span).await?),
        None => None,
    };
    let (token, secret) = pitwheel.create_token(&args.name, args.role, expires_at).await?;
    if settings.json() {
        return print_json(&Made { token: token.into(), secret });
    }
    print(&secret)?;
    say(&format!(
        "token `{}` is made, role {}. Keep the secret now, it is not shown again; callers send it as\n  \
           authorization: Bearer SECRET",
        token.name,
        token.role.as_str()
    ));
    Ok(())
}

async fn list(settings: &Settings) -> anyhow::Result<()> {
    let tokens = database::open(settings).await?.tokens().await?;
    if tokens.is_empty() {
        say("no tokens yet: make one with `pitwheel tokens create NAME --role ROLE`");
    }
    if settings.json() {
        return print_json(&tokens.into_iter().map(TokenLine::from).collect::<Vec<_>>());
    }
    if tokens.is_empty() {
        return Ok(());
    }
    Ok(print(&table(&tokens, SystemTime::now()))?)
}

fn table(tokens: &[Token], now: SystemTime) -> String {
    let expires = |token: &Token| match token.expires_at {
        Some(at) if at <= now => format!("expired {}", relative(at, now)),
        Some(at) => relative(at, now),
        None => String::new(),
    };
    let columns = vec![
        Column::new("TOKEN", tokens, |token| token.name.clone()).cut(),
        Column::new("ROLE", tokens, |token| token.role.as_str().to_owned()),
        Column::new("CREATED", tokens, |token| relative(token.created_at, now)),
        Column::new("BY", tokens, |token| token.created_by.clone()).cut(),
        Column::new("EXPIRES", tokens, expires).optional(),
    ];
    render(columns)
}

async fn revoke(name: &str, settings: &Settings) -> anyhow::Result<()> {
    if !database::open(settings).await?.revoke_token(name).await? {
        let problem = format!("token `{name}` is not there: `pitwheel tokens list` shows which are");
        return Err(Stop::not_found(problem).into());
    }
    if settings.json() {
        return print_json(&json!({ "name": name, "revoked": true }));
    }
    say(&format!("token `{name}` is revoked: within two seconds every server refuses it"));
    Ok(())
}
