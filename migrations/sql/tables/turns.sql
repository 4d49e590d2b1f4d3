-- One row for each thread that has a turn, or for which turns wait. The row has the thread's name and not its
-- thread_uid, because the thread may not exist yet. The table is not part of the chain. turn_id is the turn that has
-- the thread until its lease ends, or NULL if the first waiting turn may take the thread. waiting lists the waiting
-- turns in the order of their arrival; waiting_until has the time at which each place expires unless the turn asks
-- again.
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
    CONSTRAINT turns_pkey PRIMARY KEY (tenant, thread_id),
    CONSTRAINT turns_texts_check CHECK (octet_length(actor) <= 255 AND octet_length(login) <= 255)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
