-- Facts never change (job, attempt, redrive); states move (scheduled, ready, lease, outcome); the rest are settings.
-- A job is in exactly one of scheduled, ready, lease, outcome: `duly doctor` checks it.
-- PostgreSQL's times reach beyond those of other languages: one row out of their range would break every statement that
-- returns it, so times that somebody gives are bound to the years 1 to 9999, and a time limit to a year.

-- Settings -----------------------------------------------------------------------------------------------------------

-- A named set of limits; what is left out is not limited (the members are in `duly.service.plans`).
create table duly.plan (
    name        text        primary key,
    limits      jsonb       not null check (jsonb_typeof(limits) = 'object'),
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now()
);

-- What an account may do is its plan's limits, and its own where it has some. What claiming and pruning read of them stands in columns,
-- written by apply_limits (see accounts.sql).
create table duly.account (
    id          integer generated always as identity primary key,   -- the number that hot rows carry; never leaves the cell
    public_id   uuid        not null unique,
    name        text        not null,
    operator    boolean     not null default false,    -- its admin keys administer all accounts
    plan        text        references duly.plan (name),
    limits      jsonb       not null default '{}' check (jsonb_typeof(limits) = 'object'),
    concurrency integer     check (concurrency >= 0),   -- how many of its jobs may run at once; null: no limit; 0: it is disabled
    weight      smallint    not null default 1 check (weight between 1 and 100),   -- its part of a claim, beside those of others
    keep        interval    check (keep > '0'),         -- how long its finished jobs are kept; null: as the operator has it
    keep_dead   interval    check (keep_dead > '0'),
    created_at  timestamptz not null default now(),
    disabled_at timestamptz,
    deleted_at  timestamptz
);
create unique index account_name on duly.account (name) where deleted_at is null;
create index account_of_plan on duly.account (plan);
create index account_keeping on duly.account (id) where keep is not null or keep_dead is not null;

create table duly.project (
    id          integer generated always as identity primary key,
    public_id   uuid        not null unique,
    account_id  integer     not null references duly.account (id),
    name        text        not null,
    created_at  timestamptz not null default now(),
    deleted_at  timestamptz
);
create unique index project_name on duly.project (account_id, name) where deleted_at is null;

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
create index api_key_of_project on duly.api_key (project_id);

create table duly.signing_secret (
    id          uuid        primary key,
    project_id  integer     not null references duly.project (id),
    secret      bytea       not null,
    created_at  timestamptz not null default now(),
    expires_at  timestamptz                           -- after a rotation the old one goes on signing until here
);
create index signing_secret_of_project on duly.signing_secret (project_id);

-- Blocks of an account's monthly quota that processes have taken, and what they gave back (a negative size): one row each, never
-- changed. A block is a part of the quota, so that a month has some hundred rows an account, whatever it creates.
create table duly.quota_block (
    account_id  integer     not null references duly.account (id),
    month       date        not null,
    taken_at    timestamptz not null default clock_timestamp(),
    size        bigint      not null
);
create index quota_block_of_account on duly.quota_block (account_id, month);
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
    rate_limit      integer     check (rate_limit between 1 and 1000000),              -- how many attempts may start
    rate_seconds    double precision check (rate_seconds between 0.001 and 31622400),  -- in so many seconds
    defaults        jsonb,                                     -- what its new jobs take where they say nothing
    paused          boolean     not null default false,
    check ((rate_limit is null) = (rate_seconds is null)),
    primary key (project_id, name)
);

-- When a queue with a rate has all its tokens again (see rates.sql). The last row counts: each claim that starts jobs adds one and takes
-- the one before away. Never an update: the reader begins at the last one, and walks no versions that a snapshot keeps.
create table duly.rate (
    project_id integer     not null,
    queue      text        not null,
    full_at    timestamptz not null,
    primary key (project_id, queue, full_at)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

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
    replay_of       uuid,                                            -- the job that this one was copied from
    revision        smallint    check (revision between 1 and 1000), -- how often it was changed while scheduled (see change.sql); null: never
    check ((unique_key is null) = (unique_for is null)),
    check (callback_of is null or (on_success is null and on_dead is null)),
    primary key (id)
) partition by range (id);
-- partial in form only: a look-up by id alone must never take this one (it would on a day whose statistics say it is empty)
create index job_of_project on duly.job (project_id, id) where project_id is not null;
create index job_of_key on duly.job (project_id, unique_key, id) where unique_key is not null;

-- A row for each tag of a job: what a list by tag walks.
create table duly.job_tag (
    project_id integer not null,
    tag        text    not null,
    job_id     uuid    not null,
    primary key (project_id, tag, job_id)
) partition by range (job_id);

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
create index attempt_by_time on duly.attempt using brin (finished_at);   -- for events: rows lie in the order of time, so it costs next to nothing

create table duly.outcome (
    job_id        uuid        not null,
    account_id    integer     not null,
    state         text        not null check (state in ('succeeded', 'dead', 'cancelled')),
    reason        text,
    attempt       integer     not null,    -- the last attempt that ran, 0 if none did
    final_attempt integer     not null,
    result        jsonb,
    finished_at   timestamptz not null default now(),
    primary key (job_id)
) partition by range (job_id);
create index outcome_by_time on duly.outcome using brin (finished_at);
create index outcome_dead on duly.outcome (job_id) where state = 'dead';
-- for notices, which read a window at its end; the second condition, always true, keeps it from who looks for a day's dead letters by key
create index outcome_dead_lately on duly.outcome (finished_at, account_id) where state = 'dead' and finished_at is not null;
create index outcome_unsuccessful on duly.outcome (account_id, state, job_id) where state <> 'succeeded';

-- One row per redrive: who gave a fresh budget, and after which attempt. The age of the new budget counts from here.
create table duly.redrive (
    job_id        uuid        not null,
    after_attempt integer     not null,
    redriven_at   timestamptz not null default now(),
    redriven_by   text,
    primary key (job_id, after_attempt)
);

-- What the API keeps of its own calls -----------------------------------------------------------------------------------

-- An answer to a request with an Idempotency-Key, written by the transaction that did what it tells of. Kept for 24 hours.
create table duly.idempotency (
    project_id  integer     not null,
    endpoint    text        not null,
    key         text        not null,
    fingerprint bytea       not null,          -- SHA-256 of method, path and body
    status      smallint,                      -- null only inside the transaction that writes it
    answer      bytea,                         -- sealed where there are keys
    headers     jsonb,
    made_at     timestamptz not null default now(),
    primary key (project_id, endpoint, key)
);
create index idempotency_by_time on duly.idempotency (made_at);

-- One call for many jobs, carried out by upkeep in steps (see operations.sql). The row is its record: who, when, how far.
create table duly.operation (
    id           uuid        primary key,
    account_id   integer     not null,
    project_id   integer     not null,
    call         text        not null check (call in ('cancel', 'redrive')),
    filter       jsonb       not null,
    most         integer     not null check (most > 0),
    rate         real        not null check (rate > 0),        -- jobs a second
    requested_by text        not null,
    requested_at timestamptz not null default now(),
    place        uuid,                                         -- it has looked at the jobs from here on; null: at none yet
    looked       bigint      not null default 0,
    done         integer     not null default 0,
    refused      integer     not null default 0,               -- they matched and had moved on, or may not be redriven
    next_at      timestamptz not null default now(),
    finished_at  timestamptz
) with (fillfactor = 50);
create index operation_to_do on duly.operation (next_at) where finished_at is null;
create index operation_of_project on duly.operation (project_id, id);

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
create index scheduled_of_account on duly.scheduled (account_id, run_at);   -- for counting what an account has stored

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
    trigger          text        not null,
    progress         jsonb                                 -- how far its handler says it has come (see tasks.sql)
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

-- Schedules ---------------------------------------------------------------------------------------------------------------
-- What a schedule is (schedule) is kept apart from where it stands (schedule_turn): a fire writes the second only.

create table duly.schedule (
    id           uuid        primary key,
    account_id   integer     not null,
    project_id   integer     not null references duly.project (id),
    name         text,
    declared_by  text,                                -- the set of declarations that it belongs to; null: made by hand
    cron         text,
    timezone     text,
    every        interval    check (every >= interval '1 second'),
    at           timestamptz check (isfinite(at)),
    anchor_at    timestamptz not null check (isfinite(anchor_at)),   -- intervals are counted from here
    start_at     timestamptz check (isfinite(start_at)),
    end_at       timestamptz check (isfinite(end_at)),
    most_fires   integer     check (most_fires > 0),
    missed       text        not null check (missed in ('skip', 'one', 'all')),
    missed_limit integer     not null check (missed_limit > 0),
    missed_after interval    not null,
    overlap      text        not null check (overlap in ('allow', 'skip', 'wait')),
    jitter       interval    not null,
    kind         text        not null,
    payload      jsonb       not null,
    body         bytea,
    options      jsonb       not null,                -- everything else that its jobs get
    weight_bytes integer     not null,
    created_at   timestamptz not null default now(),
    updated_at   timestamptz not null default now(),
    unique (project_id, name),
    check (num_nonnulls(cron, every, at) = 1)
);
create index schedule_of_project on duly.schedule (project_id, id) where project_id is not null;   -- as job_of_project: not by id alone

create table duly.schedule_turn (
    schedule_id   uuid        primary key references duly.schedule (id) on delete cascade,
    is_task       boolean     not null default false, -- its jobs are tasks: they can be made without keys and egress policy
    state         text        not null check (state in ('active', 'paused', 'parked', 'ended')),
    revision      integer     not null default 1,     -- grows with every edit
    next_fire_at  timestamptz check (next_fire_at >= '0001-01-01 00:00+00' and next_fire_at < '9999-12-31 00:00+00'),
    since_at      timestamptz not null,               -- the next fire is the first after this
    look_at       timestamptz,                        -- when to look at it: at its next fire, later while that waits
    waiting_since timestamptz,                        -- its fire waits for the end of the job before
    made          bigint      not null default 0,     -- jobs by the calendar
    last_fire_at  timestamptz,
    parked_why    text,
    check ((state = 'active') = (next_fire_at is not null)),
    check ((state = 'active') = (look_at is not null)),
    check ((state = 'parked') = (parked_why is not null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index schedule_turn_by_look on duly.schedule_turn (is_task, look_at, schedule_id);

-- One row per fire: the ledger, and what keeps a fire from being made twice. `covers`: how many fires it tells of.
create table duly.fire (
    schedule_id uuid        not null,
    fire_at     timestamptz not null,
    trigger     text        not null check (trigger in ('schedule', 'manual')),
    outcome     text        not null check (outcome in ('made', 'missed', 'skipped')),
    covers      integer     not null default 1,
    job_id      uuid,
    why         text,
    made_at     timestamptz not null default clock_timestamp(),
    primary key (schedule_id, fire_at, trigger)
);
create index fire_by_time on duly.fire (fire_at);

-- Notices -----------------------------------------------------------------------------------------------------------------
-- Who is told when something needs a person. Its webhooks are jobs of its project, signed with that project's secrets.

create table duly.notice (
    id            uuid        primary key,
    project_id    integer     not null references duly.project (id),
    about         text        not null check (about in ('project', 'account', 'everything')),
    account_id    integer     references duly.account (id),            -- of which account it tells; null: of all
    url           text        not null,
    queue         text        not null,
    types         text[]      not null check (cardinality(types) > 0),
    dead_letters  integer     not null check (dead_letters > 0),       -- so many ...
    dead_seconds  real        not null check (dead_seconds between 1 and 31622400),   -- ... in so long
    quota_place   integer     not null default 0,                      -- the accounts up to here have been looked at in this round
    created_at    timestamptz not null default now(),
    updated_at    timestamptz not null default now(),
    check ((about = 'everything') = (account_id is null))
) with (fillfactor = 50);
create index notice_of_project on duly.notice (project_id, id);
create unique index notice_of_url on duly.notice (project_id, about, coalesce(account_id, 0), url);

-- What a notice has been told of and lasts: told once, and again each day. Written by the transaction that makes the job which tells it.
create table duly.notice_episode (
    notice_id uuid        not null references duly.notice (id) on delete cascade,
    key       text        not null,           -- what of: breaker:7:a.example
    type      text        not null,
    level     smallint    not null,           -- the worst that was told
    began_at  timestamptz not null,
    told_at   timestamptz not null,
    primary key (notice_id, key)
) with (fillfactor = 50);

-- Who looks holds this row: one process at a time, whatever their number.
create table duly.notice_watch (
    only_one boolean     primary key default true check (only_one),
    place    uuid,                                -- this round has seen to the notices up to here; null: it is over
    next_at  timestamptz not null default now()
) with (fillfactor = 50);
insert into duly.notice_watch default values;
