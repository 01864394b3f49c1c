-- copy_units.sql: units of a version.
copy ingest.unit (version_id, line, code, name, parent) from stdin
