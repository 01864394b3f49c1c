//! The fetcher against real servers: sites that behave well, badly and with malice, a WebSub hub, and Postgres.

mod api;
mod crash;
mod due;
mod events;
mod hostile;
mod interleave;
mod manners;
mod no_worker;
mod site;
mod subscriptions;
mod support;
mod websub;
mod websub_bodies;
