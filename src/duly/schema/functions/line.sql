-- A job's place in its lane's line: an hour behind for each level of priority. So the more urgent goes first, and nothing
-- starves: a job is overtaken only by jobs that became due less than an hour per level after it. Written once, with the row
-- in ready: no job is ever moved because it aged.
create function duly.line_at(p_run_at timestamptz, p_priority smallint) returns timestamptz
language sql stable parallel safe
return p_run_at + p_priority * interval '1 hour';
