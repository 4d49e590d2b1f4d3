-- One narrow row for each thread, which every write updates. If the last attempt at a compaction made no progress,
-- stalled_tokens is the size that the view had then. It is NULL otherwise, and after an erasure. erased_pos is the pos
-- of the thread's erasure. It is stored here because every write reads this row. hidden_seq is the last seq that a
-- clear with the trigger "hide" covers, or NULL if no such clear is in force. The thread is hidden as long as
-- hidden_seq equals last_seq. feed_xid is that of the newest entry. lease_* describe the run that compacts the thread
-- now, or that died while compacting.
-- With fillfactor 50, updated rows stay on their page (HOT), as long as no indexed column changes. So the index has a
-- coarse copy of view_tokens, which rarely changes. For the same reason, lists of the newest threads use the hour of
-- active_at, the time of the last message, or of the thread's creation if it has none. subject says whose the thread
-- is. It is here and not in threads, so that one index has both the subject and the hour. is_log says that the thread is
-- the log of its tenant, which has events only.
CREATE TABLE compaction_store.heads (
    thread_uid uuid NOT NULL,
    last_seq bigint NOT NULL DEFAULT 0,
    last_number bigint NOT NULL DEFAULT 0,
    last_pos bigint NOT NULL DEFAULT 0,
    view_tokens bigint NOT NULL DEFAULT 0,
    stalled_tokens bigint,
    erased_pos bigint,
    hidden_seq bigint,
    last_at timestamptz NOT NULL DEFAULT '-infinity',
    active_at timestamptz NOT NULL DEFAULT '-infinity',
    active_hour timestamp GENERATED ALWAYS AS (date_trunc('hour'::text, (active_at AT TIME ZONE 'UTC'::text))) STORED,
    lease_since timestamptz,
    lease_until timestamptz,
    lease_run uuid,
    feed_xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    is_log boolean NOT NULL DEFAULT false,
    view_tokens_coarse integer GENERATED ALWAYS AS ((LEAST((view_tokens >> 14), (2147483647)::bigint))::integer) STORED,
    tenant text COLLATE "C" NOT NULL,
    lease_actor text COLLATE "C",
    subject text COLLATE "C",
    head bytea NOT NULL,
    CONSTRAINT heads_pkey PRIMARY KEY (thread_uid),
    CONSTRAINT heads_tenant_check CHECK (tenant <> ''),
    CONSTRAINT heads_texts_check CHECK (octet_length(lease_actor) <= 255),
    CONSTRAINT heads_subject_check CHECK (
        subject IS NULL OR (octet_length(subject) BETWEEN 1 AND 255 AND erased_pos IS NULL)
    ),
    CONSTRAINT heads_dense_check CHECK (last_seq >= 0 AND last_number >= 0 AND last_pos >= last_seq + last_number),
    CONSTRAINT heads_log_check CHECK (NOT is_log OR last_seq + last_number = 0 OR compaction_store.refuse_in_log())
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);

-- This index has the order of `due`, so that a page needs no sort.
CREATE INDEX heads_due_idx ON compaction_store.heads (tenant, view_tokens_coarse, thread_uid);
-- The threads of a tenant, and of one subject, by the hour of their last message. Only the threads of one hour must be
-- sorted, and an append writes to these indexes only if it is the thread's first in an hour.
CREATE INDEX heads_recent_idx ON compaction_store.heads (tenant, active_hour, thread_uid);
CREATE INDEX heads_subject_idx ON compaction_store.heads (tenant, subject, active_hour, thread_uid)
    WHERE subject IS NOT NULL;
