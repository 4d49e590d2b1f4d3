-- One narrow row a thread, changed by every write. stalled_tokens is what the view took when an attempt at a compaction
-- made no progress; NULL once one did. erased_pos is the pos of the thread's erasure, read with the row that is
-- locked anyway. Half of each page stays free, so that updates stay on the page;
-- the index is on a coarse copy of view_tokens, because an index on the figure itself would end that.
CREATE TABLE compaction_store.heads (
    thread_uid uuid NOT NULL,
    last_seq bigint NOT NULL DEFAULT 0,
    last_number bigint NOT NULL DEFAULT 0,
    last_pos bigint NOT NULL DEFAULT 0,
    view_tokens bigint NOT NULL DEFAULT 0,
    stalled_tokens bigint,
    erased_pos bigint,
    last_at timestamptz NOT NULL DEFAULT '-infinity',
    lease_until timestamptz,
    lease_run uuid,
    view_tokens_coarse integer GENERATED ALWAYS AS (least(view_tokens >> 14, 2147483647)::integer) STORED,
    tenant text COLLATE "C" NOT NULL,
    head bytea NOT NULL,
    CONSTRAINT heads_pkey PRIMARY KEY (thread_uid),
    CONSTRAINT heads_tenant_check CHECK (tenant <> ''),
    CONSTRAINT heads_dense_check CHECK (last_seq >= 0 AND last_number >= 0 AND last_pos >= last_seq + last_number)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);

-- The order of due, so that a page of it sorts nothing.
CREATE INDEX heads_due_idx ON compaction_store.heads (tenant, view_tokens_coarse, thread_uid);
