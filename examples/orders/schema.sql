-- The shop's.
create table orders (
    id       bigint  generated always as identity primary key,
    item     text    not null,
    quantity integer not null check (quantity > 0),
    booked   boolean not null default false
);

-- The partner's, in a database of its own in real life.
create table partner_orders (order_id bigint not null, item text not null, quantity integer not null);
create table duly_processed (job_id uuid primary key, processed_at timestamptz not null default now());
