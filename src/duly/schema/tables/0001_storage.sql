-- Facts never change (job, attempt, redrive); states move (scheduled, ready, lease, outcome); the rest are settings.
-- A job is in exactly one of scheduled, ready, lease, outcome: `duly doctor` checks it.
-- PostgreSQL's times reach beyond those of other languages: one row out of their range would break every statement that
-- returns it, so times that somebody gives are bound to the years 1 to 9999, and a time limit to a year.

-- Settings -----------------------------------------------------------------------------------------------------------

create table duly.account (
    id          integer generated always as identity primary key,   -- the number that hot rows carry; never leaves the cell
    public_id   uuid        not null unique,
    name        text        not null unique,
    concurrency integer     check (concurrency > 0),   -- how many of its jobs may run at once; null: no limit
    created_at  timestamptz not null default now()
);

create table duly.project (
    id          integer generated always as identity primary key,
    public_id   uuid        not null unique,
    account_id  integer     not null references duly.account (id),
    name        text        not null,
    created_at  timestamptz not null default now(),
    unique (account_id, name)
);

create table duly.api_key (
    id          uuid        primary key,
    project_id  integer     not null references duly.project (id),
    name        text        not null,
    hint        text        not null,                 -- the first characters, so that a person can tell keys apart
    secret_hash bytea       not null unique,          -- SHA-256 of the whole key; the key itself is shown once and kept nowhere
    scopes      text[]      not null,
    created_at  timestamptz not null default now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    last_used_at timestamptz
);

create table duly.signing_secret (
    id          uuid        primary key,
    project_id  integer     not null references duly.project (id),
    secret      bytea       not null,
    created_at  timestamptz not null default now(),
    expires_at  timestamptz                           -- after a rotation the old one goes on signing until here
);
create index signing_secret_of_project on duly.signing_secret (project_id);

-- Who looks at the dashboard: with a key, whose scopes count and whose end is the session's; or as an operator, who sees everything.
create table duly.dashboard_session (
    secret_hash bytea       primary key,              -- SHA-256 of what the browser sends; that is kept nowhere
    key_id      uuid        references duly.api_key (id) on delete cascade,
    scopes      text[],                               -- an operator's
    is_token    boolean     not null,                 -- no session yet: signs an operator in, once
    created_at  timestamptz not null default now(),
    seen_at     timestamptz not null default now(),
    ends_at     timestamptz not null,
    check ((key_id is null) = (scopes is not null))
);

-- What its owner says about a queue. One without a row has no limits and is not paused.
create table duly.queue (
    project_id      integer     not null references duly.project (id),
    name            text        not null,
    concurrency     integer     check (concurrency > 0),       -- how many of its jobs may run at once; null: no limit
    key_concurrency integer     check (key_concurrency > 0),   -- and how many of those with one concurrency key
    paused          boolean     not null default false,
    primary key (project_id, name)
);

-- A lane is one line of jobs: what fairness goes round and limits count: a queue, a kind and a concurrency key. The lanes of one
-- queue and kind are a block: their numbers lie side by side, so that a claim passes by all of them in one step (a queue that
-- is paused or full, a kind that the worker does not know) and counts what runs in them in one range.
create table duly.lane_block (
    id          integer generated always as identity primary key,
    account_id  integer     not null references duly.account (id),
    project_id  integer     not null references duly.project (id),
    queue       text        not null,
    kind        text        not null,
    created_at  timestamptz not null default now(),
    unique (account_id, project_id, queue, kind)
);
create table duly.lane (
    id              bigint      primary key,               -- the number of its block in the upper half
    block_id        integer     not null references duly.lane_block (id),
    concurrency_key text        not null default '',       -- '': none
    created_at      timestamptz not null default now(),
    unique (block_id, concurrency_key),
    check (id >> 32 = block_id)
);
create sequence duly.lane_number maxvalue 4294967295;

-- Who has a unique key. A row lives on when its job lets go of the key (see key_is_held in unique_keys.sql): the next job takes it over.
create table duly.unique_key (
    project_id integer     not null references duly.project (id),
    key        text        not null,
    job_id     uuid        not null,
    until      text        not null check (until in ('start', 'final', 'time')),   -- how long the job holds it
    expires_at timestamptz check (isfinite(expires_at)),
    primary key (project_id, key),
    check ((until = 'time') = (expires_at is not null))
) with (fillfactor = 70);

-- Facts, by day of their id (see add_days.sql) -------------------------------------------------------------------------

create table duly.job (
    id              uuid        not null,
    account_id      integer     not null,
    project_id      integer     not null,
    lane_id         bigint      not null,
    queue           text        not null,
    concurrency_key text,
    kind            text        not null,
    priority        smallint    not null check (priority between 0 and 9),
    max_attempts    smallint    not null check (max_attempts between 1 and 1000),
    timeout_seconds real        not null check (timeout_seconds > 0 and timeout_seconds <= 31622400),   -- a leap year
    run_at          timestamptz not null check (run_at >= '0001-01-01 00:00+00' and run_at < '9999-12-31 00:00+00'),   -- when it was to run first
    created_at      timestamptz not null default now(),
    expires_at      timestamptz check (expires_at >= '0001-01-01 00:00+00' and expires_at < '9999-12-31 00:00+00'),
    retry           jsonb,                                           -- null: the default policy
    tags            text[],
    metadata        jsonb,
    payload         jsonb       not null,
    body            bytea,                                           -- bytes exactly as given
    unique_key      text,
    unique_for      text check (case when unique_for in ('until_start', 'until_final') then true
                                     else unique_for::double precision between 0.001 and 31622400 end),   -- seconds
    on_success      jsonb,                                           -- the payload of a job of kind http, made when this one has succeeded
    on_dead         jsonb,                                           -- and when it is dead (see call_back.sql)
    callback_of     uuid,                                            -- the job whose outcome this one tells
    check ((unique_key is null) = (unique_for is null)),
    check (callback_of is null or (on_success is null and on_dead is null)),
    primary key (id)
) partition by range (id);
-- partial in form only: a look-up by id alone must never take this one (it would on a day whose statistics say it is empty)
create index job_of_project on duly.job (project_id, id) where project_id is not null;

create table duly.attempt (
    job_id      uuid        not null,
    number      integer     not null,
    worker_id   bigint      not null,
    trigger     text        not null,
    started_at  timestamptz not null,
    finished_at timestamptz not null default now(),
    outcome     text        not null,
    status_code smallint,
    error       text,
    next_run_at timestamptz,
    detail      jsonb,
    excerpt     bytea,
    primary key (job_id, number)
) partition by range (job_id);

create table duly.outcome (
    job_id        uuid        not null,
    state         text        not null check (state in ('succeeded', 'dead', 'cancelled')),
    reason        text,
    attempt       integer     not null,    -- the last attempt that ran, 0 if none did
    final_attempt integer     not null,
    result        jsonb,
    finished_at   timestamptz not null default now(),
    primary key (job_id)
) partition by range (job_id);
create index outcome_dead on duly.outcome (job_id) where state = 'dead';

-- One row per redrive: who gave a fresh budget, and after which attempt. The age of the new budget counts from here.
create table duly.redrive (
    job_id        uuid        not null,
    after_attempt integer     not null,
    redriven_at   timestamptz not null default now(),
    redriven_by   text,
    primary key (job_id, after_attempt)
);

-- States ----------------------------------------------------------------------------------------------------------------
-- `attempt` is the number of the attempt to come (under a lease: the one that runs), `final_attempt` the last of the budget.

create table duly.scheduled (
    job_id        uuid        not null primary key,
    account_id    integer     not null,
    priority      smallint    not null,
    attempt       integer     not null,
    lane_id       bigint      not null,
    run_at        timestamptz not null check (run_at >= '0001-01-01 00:00+00' and run_at < '9999-12-31 00:00+00'),
    final_attempt integer     not null,
    held          boolean     not null default false,   -- it was due and not tried: its target's breaker is open
    trigger       text        not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index scheduled_by_time on duly.scheduled (run_at, job_id);

create table duly.ready (
    segment       bigint      not null,
    job_id        uuid        not null primary key,
    run_at        timestamptz not null check (run_at >= '0001-01-01 00:00+00' and run_at < '9999-12-31 00:00+00'),
    line_at       timestamptz not null,   -- its place in line (see line.sql)
    lane_id       bigint      not null,
    account_id    integer     not null,
    priority      smallint    not null,
    attempt       integer     not null,
    final_attempt integer     not null,
    trigger       text        not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index ready_line on duly.ready (segment, account_id, lane_id, line_at, job_id);

create table duly.lease (
    segment          bigint      not null,
    job_id           uuid        not null primary key,
    run_at           timestamptz not null,
    lane_id          bigint      not null,
    worker_id        bigint      not null,
    claimed_at       timestamptz not null default now(),
    deadline_at      timestamptz not null,
    account_id       integer     not null,
    priority         smallint    not null,
    attempt          integer     not null,
    final_attempt    integer     not null,
    cancel_requested boolean     not null default false,
    abort_requested  boolean     not null default false,
    has_callbacks    boolean     not null default false,   -- the job has on_success or on_dead: settling looks for them then only
    trigger          text        not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
create index lease_line on duly.lease (segment, account_id, lane_id);
create index lease_to_abort on duly.lease (worker_id) where abort_requested;

create table duly.worker (
    id               bigint generated always as identity primary key,
    name             text        not null,             -- host and process, for people
    kinds            text[]      not null,
    queues           text[],                           -- null: all
    concurrency      integer     not null,
    lease_seconds    real        not null check (lease_seconds > 0),
    started_at       timestamptz not null default now(),
    heartbeat_at     timestamptz not null default now(),
    lease_expires_at timestamptz not null
) with (fillfactor = 50);

-- An open breaker: deliveries for this account to this host are held. No row: closed. Written when it opens, when a probe goes and comes,
-- and removed when it closes; never by an ordinary delivery.
create table duly.breaker (
    account_id    integer     not null,
    host          text        not null,
    opened_at     timestamptz not null,
    failures      integer     not null,             -- in a row, those of the probes included
    last_error    text,
    pause_seconds real        not null check (pause_seconds > 0),
    probe_at      timestamptz not null,             -- when the next probe may go
    probe         integer     not null default 0,   -- the number of the last one
    probe_until   timestamptz,                      -- while one is out: until when nobody else may go
    primary key (account_id, host)
) with (fillfactor = 50);

-- Segments: a number that groups the rows of ready and lease in time. `segment_current` is what new rows get. A number
-- below a floor is retired unless it is kept; one above it is retired if it is listed. Sequences are not versioned: reading them costs the
-- same whatever snapshots are open. After a crash a sequence may skip numbers, never repeat one that a row could hold:
-- nextval logs 32 numbers ahead. That suits the current number only. A floor that skipped would hide rows, so floors are
-- moved by setval and by nothing else, which logs the number itself.
create sequence duly.segment_current;
create sequence duly.ready_floor;
create sequence duly.lease_floor;
select nextval('duly.segment_current'), setval('duly.ready_floor', 1), setval('duly.lease_floor', 1);

create table duly.retired (
    line    text   not null check (line in ('ready', 'lease')),
    segment bigint not null,
    primary key (line, segment)
);

-- Live segments that the floor has passed: rows that stay (a paused queue, a long job) must not hold the floor down.
create table duly.kept (
    line    text   not null check (line in ('ready', 'lease')),
    segment bigint not null,
    primary key (line, segment)
);

-- Not zero while some worker is known to be idle (milliseconds of the Unix epoch until when). Whoever brings work takes
-- it to zero and notifies: a coalesced hint, never one per row.
create sequence duly.idle_until minvalue 0 start 0;
select setval('duly.idle_until', 0);

-- When the promoter looks next (milliseconds of the Unix epoch): whoever schedules something earlier notifies it.
create sequence duly.promote_at minvalue 0 start 0;
select setval('duly.promote_at', 0);
