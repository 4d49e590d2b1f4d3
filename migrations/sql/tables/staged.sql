-- Holds the entries of a bundle, one row each, until finish_import moves them into the log. COPY refuses tables under
-- row-level security, so this table has none: only finish_import reads it, and nobody can choose staged_by, the
-- transaction that separates imports. Bodies are text until they are moved. The table is UNLOGGED, because an import is
-- repeated after a crash.
CREATE UNLOGGED TABLE compaction_store.staged (
    staged_by bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    thread_uid uuid NOT NULL,
    type text COLLATE "C" NOT NULL,
    ordinal bigint,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    redacted_pos bigint,
    salt bytea,
    commitment bytea NOT NULL,
    entry bytea NOT NULL,
    body text,
    tokens integer,
    call_size integer,
    role text COLLATE "C",
    counter text COLLATE "C",
    key text COLLATE "C",
    receipt text,
    meta_commitment bytea,
    meta text,
    critical boolean,
    kind text COLLATE "C",
    outcome text COLLATE "C",
    start_seq bigint,
    end_seq bigint,
    tokens_before bigint,
    tokens_after bigint,
    source_count bigint,
    revokes bigint,
    run_id uuid,
    callback text COLLATE "C",
    trigger text COLLATE "C",
    actor text COLLATE "C",
    login text COLLATE "C",
    model text COLLATE "C",
    inputs bigint[],
    source_before bytea,
    source_end bytea
);

CREATE INDEX staged_by_idx ON compaction_store.staged (staged_by);
