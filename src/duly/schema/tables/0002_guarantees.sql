-- Unique keys, and a place in line that ages.

-- Who has a key. A row lives on when its job lets go of the key (see key_is_held in unique_keys.sql): the next job takes it over.
create table duly.unique_key (
    project_id integer     not null references duly.project (id),
    key        text        not null,
    job_id     uuid        not null,
    until      text        not null check (until in ('start', 'final', 'time')),   -- how long the job holds it
    expires_at timestamptz check (isfinite(expires_at)),
    primary key (project_id, key),
    check ((until = 'time') = (expires_at is not null))
) with (fillfactor = 70);

alter table duly.job
    add column unique_key text,
    add column unique_for text check (
        case when unique_for in ('until_start', 'until_final') then true else unique_for::double precision between 0.001 and 31622400 end),   -- seconds
    add constraint job_unique_both check ((unique_key is null) = (unique_for is null));

-- The place in line: the time it was due, plus an hour for each level of priority (see line_at in line.sql).
alter table duly.ready add column line_at timestamptz check (isfinite(line_at));
update duly.ready set line_at = run_at + priority * interval '1 hour';
alter table duly.ready alter column line_at set not null;
drop index duly.ready_line;
create index ready_line on duly.ready (segment, account_id, lane_id, line_at, job_id);
