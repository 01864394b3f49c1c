-- copy_entries.sql: entries of a version.
copy ingest.entry (version_id, line, unit, category, quantity, measure, date, name, supplier, location, reference, note) from stdin
