//! How relays share the events.

use std::future::Future;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pitwheel::Pitwheel;
use pitwheel::engine::outbox::{Entities, EntityLock, RelayOptions, Shards, SourceTable};
use pitwheel_relay::{AnySink, Relay, Stats};

use crate::exit::CommandError;
use crate::relay::table::TableArgs;

/// One for events, and one for renewals that must not wait for them.
const CONNECTIONS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StrategyName {
    Shards,
    Advisory,
    RowLock,
}

#[derive(Debug, Args)]
pub(crate) struct StrategyArgs {
    /// How relays share the events: by shards, or entity by entity, with locks that are advisory or on rows
    #[arg(long, value_name = "STRATEGY", value_enum, default_value = "shards", requires = "sink")]
    strategy: StrategyName,

    #[command(flatten)]
    table: TableArgs,
}

impl StrategyArgs {
    /// The relay that takes events by this strategy.
    pub(crate) async fn relay(
        &self,
        pitwheel: &Pitwheel,
        options: RelayOptions,
        sink: AnySink,
    ) -> anyhow::Result<AnyRelay> {
        self.check(&options)?;
        let pool = pitwheel.pool_for_loops(CONNECTIONS, statement_limit(options.lease))?;
        let lock = match self.strategy {
            StrategyName::Shards => {
                return Ok(AnyRelay::Shards(Box::new(Relay::new(Shards::new(pool, options)?, sink))));
            }
            StrategyName::Advisory => EntityLock::Advisory,
            StrategyName::RowLock => EntityLock::Row,
        };
        let source = self.table.source(&pool).await?.unwrap_or_else(SourceTable::pitwheel);
        let entities = Entities::new(pool, options, source, lock)?;
        entities.check_table().await?;
        Ok(AnyRelay::Entities(Box::new(Relay::new(entities, sink))))
    }

    /// Refuses flags of another strategy.
    fn check(&self, options: &RelayOptions) -> Result<(), CommandError> {
        let problem = match self.strategy {
            StrategyName::Shards if self.table.is_given() => {
                "`--table` needs `--strategy advisory` or `--strategy row-lock`: only pitwheel.outbox has shards"
            }
            StrategyName::Advisory | StrategyName::RowLock if options.shards.is_some() => {
                "`--shards` needs `--strategy shards`: with the other strategies, relays hold no shards"
            }
            StrategyName::Advisory | StrategyName::RowLock if options.keep.is_some() => {
                "`--keep` needs `--strategy shards`: in a table of your own, keep delivered rows with `--mark`"
            }
            _ => return Ok(()),
        };
        Err(CommandError::usage(problem))
    }
}

/// A statement that takes longer is given up, so that a renewal can be repeated in time.
fn statement_limit(lease: Duration) -> Duration {
    lease / 4
}

/// A relay with any strategy.
pub(crate) enum AnyRelay {
    Shards(Box<Relay<Shards, AnySink>>),
    Entities(Box<Relay<Entities, AnySink>>),
}

impl AnyRelay {
    /// Runs until `shutdown` completes.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) -> Stats {
        match self {
            AnyRelay::Shards(relay) => relay.run(shutdown).await,
            AnyRelay::Entities(relay) => relay.run(shutdown).await,
        }
    }
}
