-- A cadence is read with every run, and by every list of recurring jobs, so it is short: the longest sensible one names all minutes, hours
-- and days. The library has the same limit. Rows from before are not checked until they change.
alter table pitwheel.recurring add constraint recurring_cadence_length check (octet_length(cadence) <= 512) not valid;
