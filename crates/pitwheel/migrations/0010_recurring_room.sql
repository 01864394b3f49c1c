-- Room for a second version of each row in every page of `recurring`, as in `job`. Of the rows of a page that was 60 % full and
-- that all ran at once, a third moved to another page, with new entries in two indexes. In the same way, the index has room for the
-- entry of the next run beside that of the last one.
-- Pages that exist keep their rows, until these are written again.
alter table pitwheel.recurring set (fillfactor = 45);
alter index pitwheel.job_recurring set (fillfactor = 45);
