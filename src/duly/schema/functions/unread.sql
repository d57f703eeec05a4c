-- End the claims whose client has not read the answer for so long that it has given up (every statement of ours has its time limit):
-- a process that is stopped, a link that is dead. Sending goes on before the commit, so the backend keeps what it locked, and
-- neither a statement_timeout nor a lease ends it. Returns how many. Touches backends of our own role only.
create function duly.end_unread_claims(p_after_seconds double precision) returns integer
language sql
return (
    select count(pg_terminate_backend(a.pid)) from pg_stat_activity a
    where a.datname = current_database() and a.usename = current_user and a.pid <> pg_backend_pid()
      and a.wait_event = 'ClientWrite' and a.query like '%duly.claim(%'
      and a.query_start < clock_timestamp() - make_interval(secs => p_after_seconds));
