-- session_settings.sql: every statement is planned for the size that its tables have now. A plan that was made while they were empty,
-- and kept, would read whole tables later.
set plan_cache_mode = force_custom_plan
