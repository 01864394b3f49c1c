//! The outbox over HTTP.

use axum::Json;
use axum::extract::State;
use pitwheel::{Outbox, Pitwheel, Replay, Unpark};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::caller::{Caller, Permission};
use crate::http::extract::{Body, Path, Query, page_limit};
use crate::http::responses::{BodyErrorResponses, ErrorResponses};
use crate::outbox_views::{EventLine, OutboxInFull, ParkedLine};
use crate::problem::Problem;
use crate::views::parse_time;

/// Which page of parked entities.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ParkedQuery {
    /// Only entities after this source and key: those of the last entity of the previous page. Both or neither.
    after_source: Option<String>,
    /// See `after_source`.
    after_key: Option<String>,
    /// Entities of a page: 1 to 1,000, default 50.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, deserialize_with = "page_limit")]
    limit: Option<u32>,
}

/// One page of parked entities, by source and key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ParkedPage {
    /// The entities. Fewer than `limit`: this is the last page.
    parked: Vec<ParkedLine>,
}

/// How the parking of entities ends.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToUnpark {
    /// The keys of the entities, 1 to 1,000.
    #[schema(min_items = 1, max_items = 1000)]
    entity_keys: Vec<String>,
    /// The table that their events are in; default `pitwheel.outbox`. For other tables there is only `retry`.
    source: Option<String>,
    /// What becomes of their events.
    how: How,
}

/// What becomes of the events of a parked entity: all are sent again (`retry`), all but the refused one (`skip`), or none (`drop`).
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum How {
    Retry,
    Skip,
    Drop,
}

/// The entities that were parked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Unparked {
    unparked: Vec<UnparkedEntity>,
}

/// An entity that was parked.
#[derive(Debug, Serialize, ToSchema)]
struct UnparkedEntity {
    /// Its key.
    entity_key: String,
    /// How many of its events were put back.
    events: i64,
}

/// Which delivered events are sent again. At least one condition; all that are given hold.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToReplay {
    /// From this id on.
    first_id: Option<i64>,
    /// Delivered at this time or later (RFC 3339).
    #[schema(format = DateTime)]
    since: Option<String>,
    /// Of this entity only.
    entity_key: Option<String>,
}

/// What is sent again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Replayed {
    /// How many events.
    events: i64,
}

/// The places of an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TracedEvent {
    /// Where it is. More than one: it was delivered, and is to be delivered again.
    places: Vec<EventLine>,
}

/// Shows what waits and for how long, the relays, and who holds which shard.
#[utoipa::path(get, path = "/outbox", tag = "outbox", responses((status = 200, description = "The outbox", body = OutboxInFull), ErrorResponses))]
pub(crate) async fn show_outbox(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
) -> Result<Json<OutboxInFull>, Problem> {
    caller.check(Permission::View)?;
    Ok(Json(pitwheel.outbox().status().await?.into()))
}

/// Lists parked entities. Needs an operator: keys and reasons may be confidential.
#[utoipa::path(get, path = "/outbox/parked", tag = "outbox", params(ParkedQuery), responses((status = 200, description = "One page of parked entities", body = ParkedPage), ErrorResponses))]
pub(crate) async fn list_parked(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Query(query): Query<ParkedQuery>,
) -> Result<Json<ParkedPage>, Problem> {
    caller.check(Permission::Operate)?;
    let after = match (&query.after_source, &query.after_key) {
        (Some(source), Some(key)) => Some((&**source, &**key)),
        (None, None) => None,
        _ => {
            return Err(Problem::invalid("`after_source` and `after_key` go together: send both".to_owned()));
        }
    };
    let parked = pitwheel.outbox().parked(after, query.limit.unwrap_or(0) as usize).await?;
    Ok(Json(ParkedPage { parked: parked.into_iter().map(ParkedLine::from).collect() }))
}

/// Ends the parking of entities. Those that are not parked are left out of the answer.
#[utoipa::path(post, path = "/outbox/unpark", tag = "outbox", request_body = ToUnpark,
    responses((status = 200, description = "The entities that were parked", body = Unparked), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn unpark_entities(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(body): Body<ToUnpark>,
) -> Result<Json<Unparked>, Problem> {
    caller.check(Permission::Operate)?;
    let how = match body.how {
        How::Retry => Unpark::Retry,
        How::Skip => Unpark::Skip,
        How::Drop => Unpark::Drop,
    };
    let keys: Vec<&str> = body.entity_keys.iter().map(String::as_str).collect();
    let outbox = pitwheel.acting_as(caller.name()).outbox();
    let unparked = outbox.unpark_in(body.source.as_deref().unwrap_or(Outbox::TABLE), &keys, how).await?;
    let entity = |(entity_key, events)| UnparkedEntity { entity_key, events };
    Ok(Json(Unparked { unparked: unparked.into_iter().map(entity).collect() }))
}

/// Sends delivered events again, if relays keep them, with the ids that they had. After an error, some of them may be sent.
#[utoipa::path(post, path = "/outbox/replay", tag = "outbox", request_body = ToReplay,
    responses((status = 200, description = "How many are sent again", body = Replayed), ErrorResponses, BodyErrorResponses))]
pub(crate) async fn replay_events(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Body(body): Body<ToReplay>,
) -> Result<Json<Replayed>, Problem> {
    caller.check(Permission::Operate)?;
    let since = body.since.as_deref().map(|text| parse_time("since", text)).transpose()?;
    let which = Replay { first_id: body.first_id, since, entity_key: body.entity_key };
    let events = pitwheel.acting_as(caller.name()).outbox().replay(&which).await?;
    Ok(Json(Replayed { events }))
}

/// Finds an event: it waits, is parked, or was delivered and kept. Needs an operator: keys may be confidential.
#[utoipa::path(get, path = "/outbox/events/{id}", tag = "outbox", params(("id" = i64, Path, description = "The id of the event")),
    responses(
        (status = 200, description = "Where it is", body = TracedEvent),
        (status = 404, description = "It was delivered and not kept, dropped, or never committed.", body = Problem, content_type = "application/problem+json"),
        ErrorResponses
    ))]
pub(crate) async fn trace_event(
    State(pitwheel): State<Pitwheel>,
    caller: Caller,
    Path(id): Path<i64>,
) -> Result<Json<TracedEvent>, Problem> {
    caller.check(Permission::Operate)?;
    let places: Vec<EventLine> =
        pitwheel.outbox().trace(id).await?.into_iter().map(EventLine::from).collect();
    if places.is_empty() {
        return Err(Problem::not_found(format!(
            "event {id} was not found: it was delivered and not kept, dropped, or never committed"
        )));
    }
    Ok(Json(TracedEvent { places }))
}
