//! Every statement keeps its plan, whatever the statistics of its tables are.

mod by_id;
mod claim;
mod explain;
mod functions;
mod lanes;
mod outbox;
mod outbox_entities;
mod outbox_operate;
mod pipelines;
mod queues;
mod recurring;
mod statements;
mod workers;
