-- copy_factors.sql: factors of a version.
copy ingest.factor (version_id, line, category, measure, kg_co2e, scope, source, note) from stdin
