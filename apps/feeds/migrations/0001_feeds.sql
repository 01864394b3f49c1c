-- The feed fetcher: sources, who subscribes to them, their articles and fetches.
--
-- Whoever changes a source together with its recurring job locks the row in `source` first, and then the job's. A subscribe and
-- an unsubscribe of one source wait for each other there.

create table feeds.source (
    id                     bigint generated always as identity primary key,
    created_at             timestamptz not null default clock_timestamp(),
    last_fetched_at        timestamptz, -- the last fetch that succeeded
    next_fetch_at          timestamptz, -- the time of the next run of the recurring job; null while disabled
    recurring_id           bigint,      -- the recurring job; null: none was created yet
    fetch_interval_minutes integer  not null constraint source_interval check (fetch_interval_minutes between 1 and 10080),
    consecutive_failures   integer  not null default 0,
    moved_sightings        integer  not null default 0,
    priority               smallint not null constraint source_priority check (priority between -9 and 9),
    url                    text     not null constraint source_url unique,
    name                   text     not null,
    category               text,
    disabled_because       text constraint source_disabled check (disabled_because in ('no subscribers', 'gone', 'operator')),
    next_fetch_reason      text,        -- why `next_fetch_at` is then
    last_error             text,        -- null after a fetch that succeeded
    etag                   text,
    last_modified          text,
    moved_to               text,        -- where permanent redirects led the last `moved_sightings` times
    hub_url                text,        -- the WebSub hub that the source names
    topic_url              text         -- its topic there
) with (fillfactor = 70);
-- Sources that a hub could push.
create index source_hub on feeds.source (id) where hub_url is not null;

create table feeds.subscription (
    source_id  bigint      not null references feeds.source on delete cascade,
    subscriber text        not null constraint subscription_subscriber check (octet_length(subscriber) between 1 and 200),
    created_at timestamptz not null default clock_timestamp(),
    primary key (source_id, subscriber)
);
create index subscription_subscriber on feeds.subscription (subscriber);

-- An article is stored once for its source: `identity` is a hash of its guid, its link or its content.
create table feeds.article (
    id           bigint generated always as identity primary key,
    source_id    bigint      not null references feeds.source on delete cascade,
    found_at     timestamptz not null default clock_timestamp(),
    published_at timestamptz,
    updated_at   timestamptz,
    identity     bytea       not null,
    url          text,
    title        text,
    author       text,
    content      text,
    constraint article_identity unique (source_id, identity)
);
create index article_source on feeds.article (source_id, id);

-- Every fetch, and every push of a hub. Kept for 30 days.
create table feeds.fetch (
    id                bigint generated always as identity primary key,
    source_id         bigint      not null references feeds.source on delete cascade,
    fetched_at        timestamptz not null default clock_timestamp(),
    next_fetch_at     timestamptz,
    status            integer,     -- null: no response
    bytes             integer     not null,
    duration_ms       integer     not null,
    articles_found    integer     not null,
    articles_new      integer     not null,
    is_push           boolean     not null,
    next_fetch_reason text,
    error             text
);
create index fetch_source on feeds.fetch (source_id, id);

-- The subscription of a source at its WebSub hub.
create table feeds.websub (
    source_id    bigint      primary key references feeds.source on delete cascade,
    requested_at timestamptz not null default clock_timestamp(),
    lease_until  timestamptz, -- null: the hub has not confirmed it
    last_push_at timestamptz,
    wanted       boolean     not null, -- false: it is to end
    hub_url      text        not null,
    topic_url    text        not null,
    token        text        not null constraint websub_token unique, -- in the path of the callback; not to be guessed
    secret       text        not null,
    denied       text         -- the reason of the hub, if it refused
);
create index websub_lease on feeds.websub (lease_until);
