-- Data ingestion: lanes, the versions of their data, and the rows of each version.
--
-- A lane has one current version at most: a column of its row, so there are never two, and none is lost while another is loaded. Whoever
-- changes the current version, or drops a version, locks the row of the lane first. Rows of a version are written before it is current;
-- they are not read until then.

create table ingest.lane (
    id              bigint generated always as identity primary key,
    current_version bigint,  -- null: nothing was loaded yet
    year            smallint constraint lane_year check (year between 1900 and 2999),
    target          text not null constraint lane_target check (target in ('entries', 'factors', 'units')),
    method          text not null constraint lane_method check (method in ('csv', 'api', 'computed')),
    module          text constraint lane_module check (octet_length(module) between 1 and 63),
    entry_type      text constraint lane_entry_type check (octet_length(entry_type) between 1 and 63),
    -- Parts that are null are equal: without this, each load of such a lane would make another lane.
    constraint lane_parts unique nulls not distinct (module, entry_type, target, method, year)
);

-- One attempt of a job to load data.
create table ingest.version (
    id         bigint generated always as identity primary key,
    lane_id    bigint      not null references ingest.lane,
    job_id     bigint      not null,
    fence      bigint      not null,
    rows       bigint      not null default 0,
    rejected   bigint      not null default 0,
    started_at timestamptz not null default clock_timestamp(),
    loaded_at  timestamptz,
    state      text        not null default 'loading'
        constraint version_state check (state in ('loading', 'loaded', 'failed', 'dropped')),
    error      text,       -- why it failed
    constraint version_attempt unique (job_id, fence),
    constraint version_lane unique (lane_id, id)
);
-- Versions whose rows are to be deleted, or may be left behind by a process that died.
create index version_unfinished on ingest.version (id) where state in ('loading', 'dropped');
alter table ingest.lane add constraint lane_current foreign key (id, current_version) references ingest.version (lane_id, id);

-- Rows have no foreign key to their version: it would be checked for each of a million rows.
create table ingest.entry (
    version_id bigint not null,
    line       bigint not null, -- in the file
    quantity   numeric not null,
    date       date,
    unit       text   not null, -- the organisational unit
    category   text   not null,
    measure    text   not null, -- what the quantity counts, such as kWh
    name       text,
    supplier   text,
    location   text,
    reference  text,
    note       text,
    primary key (version_id, line)
);

create table ingest.factor (
    version_id bigint  not null,
    line       bigint  not null,
    kg_co2e    numeric not null, -- per measure
    scope      smallint,
    category   text    not null,
    measure    text    not null,
    source     text,
    note       text,
    primary key (version_id, line)
);
create index factor_category on ingest.factor (version_id, category, measure);

create table ingest.unit (
    version_id bigint not null,
    line       bigint not null,
    code       text   not null,
    name       text   not null,
    parent     text,
    primary key (version_id, line)
);
create index unit_code on ingest.unit (version_id, code);

-- What the entries of a unit emit, by category.
create table ingest.emission (
    version_id bigint  not null,
    line       bigint  not null,
    entries    bigint  not null,
    quantity   numeric not null,
    kg_co2e    numeric, -- null: there is no factor for this category and measure
    unit       text    not null,
    category   text    not null,
    measure    text    not null,
    primary key (version_id, line)
);

create table ingest.rejected (
    version_id  bigint not null,
    line        bigint not null,
    column_name text,  -- null: the row as a whole
    reason      text   not null,
    record      text   not null, -- the row, as CSV
    primary key (version_id, line)
);

-- The jobs of a lane, and what they were asked to do.
create table ingest.sync (
    job_id       bigint primary key,
    lane_id      bigint      not null references ingest.lane,
    pipeline     bigint      not null, -- the first job of the chain
    requested_at timestamptz not null default clock_timestamp(),
    kind         text        not null,
    file_name    text,
    requested_by text        not null
);
create index sync_lane on ingest.sync (lane_id, job_id);

-- Where the method `api` reads the data of a lane: a URL or a file.
create table ingest.source (
    lane_id    bigint primary key references ingest.lane,
    changed_at timestamptz not null default clock_timestamp(),
    location   text not null constraint source_location check (octet_length(location) between 1 and 2000)
);

-- The current data, for SQL and reports.
create view ingest.current_entry as
    select lane.module, lane.entry_type, lane.method, lane.year, entry.*
    from ingest.lane
    join ingest.entry on entry.version_id = lane.current_version
    where lane.target = 'entries' and lane.method <> 'computed';
create view ingest.current_emission as
    select lane.module, lane.entry_type, lane.year, emission.*
    from ingest.lane
    join ingest.emission on emission.version_id = lane.current_version
    where lane.target = 'entries' and lane.method = 'computed';
