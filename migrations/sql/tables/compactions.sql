-- Append-only, with one row for each record, whatever its outcome. A later release may write other kinds and outcomes.
-- A record changes the view if and only if its outcome is "applied". login is that of the database session, which the
-- caller cannot choose. body is one JSON document with summary_text, replacement, prompt, reason, authority, error,
-- provider payload and usage. The chain has only a salted hash of the body, so that the body can be erased.
CREATE TABLE compaction_store.compactions (
    thread_uid uuid NOT NULL,
    number bigint NOT NULL,
    pos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    redacted_pos bigint,
    start_seq bigint,
    end_seq bigint,
    tokens_before bigint,
    tokens_after bigint,
    source_count bigint,
    revokes bigint,
    run_id uuid NOT NULL,
    feed_xid bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    callback text COLLATE "C",
    trigger text COLLATE "C",
    actor text COLLATE "C",
    login text COLLATE "C" NOT NULL,
    model text COLLATE "C",
    counter text COLLATE "C",
    inputs bigint[] NOT NULL DEFAULT '{}',
    span_node bigint GENERATED ALWAYS AS (
        ((end_seq >> (64 - strpos(((((start_seq - 1) # end_seq))::bit(64))::text, '1'::text)))
        << (64 - strpos(((((start_seq - 1) # end_seq))::bit(64))::text, '1'::text)))
    ) STORED,
    source_before bytea,
    source_end bytea,
    salt bytea,
    commitment bytea NOT NULL,
    entry bytea NOT NULL,
    body json,
    CONSTRAINT compactions_pkey PRIMARY KEY (thread_uid, number),
    CONSTRAINT compactions_tenant_check CHECK (tenant <> ''),
    CONSTRAINT compactions_kind_check CHECK (kind ~ '^[a-z][a-z0-9_]{0,62}$'),
    CONSTRAINT compactions_outcome_check CHECK (outcome ~ '^[a-z][a-z0-9_]{0,62}$'),
    CONSTRAINT compactions_span_check CHECK (
        (start_seq IS NOT NULL AND end_seq IS NOT NULL AND start_seq BETWEEN 1 AND end_seq)
        OR (start_seq IS NULL AND end_seq IS NULL AND outcome <> 'applied')
    ),
    CONSTRAINT compactions_tokens_check CHECK (
        tokens_before BETWEEN 0 AND 9007199254740991 AND tokens_after BETWEEN 0 AND 9007199254740991
    ),
    CONSTRAINT compactions_texts_check CHECK (
        octet_length(callback) <= 255 AND octet_length(trigger) <= 255 AND octet_length(actor) <= 255
        AND octet_length(login) <= 255 AND octet_length(model) <= 255 AND octet_length(counter) <= 255
    ),
    CONSTRAINT compactions_revokes_check CHECK ((kind = 'revocation') = (revokes IS NOT NULL))
);

-- This index and compactions_revokes_idx have all columns that decide which records are active, so that a view can find
-- them without reading rows of the table.
CREATE INDEX compactions_in_force_idx
    ON compaction_store.compactions (thread_uid, start_seq, end_seq DESC, number DESC)
    INCLUDE (pos, redacted_pos, tokens_after, tenant)
    WHERE outcome = 'applied' AND revokes IS NULL;
-- These two indexes are an interval tree, which finds the records whose spans contain a given span. The node of a span,
-- span_node, is the seq in the span that is divisible by the highest power of two. A span that contains another span
-- has the same node as that span, or an ancestor of that node. The ancestors of a node are the numbers that result from
-- replacing its lowest bits by a one followed by zeros. For example, the span 5 to 7 has the node 6, whose ancestors
-- are 4, 8, 16 and so on. Only the ancestors up to about the last seq matter, so there are at most as many as the last
-- seq has bits. At each ancestor, the spans that contain the given span are a range of one of the indexes. span_node
-- comes first, so that no other query uses these indexes.
CREATE INDEX compactions_span_start_idx
    ON compaction_store.compactions (span_node, thread_uid, start_seq, number DESC)
    INCLUDE (end_seq, redacted_pos, tenant)
    WHERE outcome = 'applied' AND revokes IS NULL;
CREATE INDEX compactions_span_end_idx
    ON compaction_store.compactions (span_node, thread_uid, end_seq, number)
    INCLUDE (start_seq, redacted_pos, tenant)
    WHERE outcome = 'applied' AND revokes IS NULL;
-- run_id comes first. Otherwise the planner, without good statistics, would use this index to read a thread's records.
CREATE INDEX compactions_run_idx ON compaction_store.compactions (run_id, thread_uid);
-- Like messages_listed_idx, but with every row, because a thread has few records. The condition is always true. Only
-- verify_all has this condition, so that no other query uses this index.
CREATE INDEX compactions_listed_idx ON compaction_store.compactions (tenant, thread_uid) WHERE (number * 1) IS NOT NULL;
CREATE INDEX compactions_audit_idx ON compaction_store.compactions (tenant, created_at, thread_uid, number);
CREATE INDEX compactions_revokes_idx
    ON compaction_store.compactions (thread_uid, revokes)
    INCLUDE (number, pos, tenant)
    WHERE outcome = 'applied' AND revokes IS NOT NULL;
-- The applied records of unknown kinds. Views of a thread that has one are refused. The condition must be the same as
-- in refuse_unknown.
CREATE INDEX compactions_unknown_idx ON compaction_store.compactions (thread_uid, pos)
    WHERE outcome = 'applied'
        AND kind NOT IN ('summary', 'truncation', 'removal', 'revocation', 'rewind', 'clear', 'adoption');
-- Like messages_feed_idx.
CREATE INDEX compactions_feed_idx ON compaction_store.compactions (tenant, feed_xid, thread_uid, pos) WHERE (pos + 0) IS NOT NULL;
