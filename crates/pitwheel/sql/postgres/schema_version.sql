-- schema_version.sql: the version of the schema, and the newest breaking migration above $1, the newest one this build knows.
select coalesce(max(version), 0), max(version) filter (where breaking and version > $1)
from pitwheel.migration
