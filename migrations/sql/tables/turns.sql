-- One row for each thread that has a turn now; the thread itself may not exist yet, so the row has its name and no key.
-- It is not part of the chain. turn_id is the turn that has the thread until its lease ends, NULL if the first waiting
-- turn may take it. waiting lists the waiting turns in the order of their arrival, each with the time when its place
-- expires unless it asks again.
CREATE TABLE compaction_store.turns (
    turn_id uuid,
    held_since timestamptz,
    held_until timestamptz,
    tenant text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    actor text COLLATE "C",
    login text COLLATE "C",
    waiting uuid[] NOT NULL DEFAULT '{}',
    waiting_until timestamptz[] NOT NULL DEFAULT '{}',
    CONSTRAINT turns_pkey PRIMARY KEY (tenant, thread_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
