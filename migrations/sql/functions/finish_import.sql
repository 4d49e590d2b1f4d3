-- Moves the head of a thread that a bundle brings over the rows that were copied, after recomputing their chain from
-- genesis, all three kinds of entries together, and after holding its records to the messages they stand for.
CREATE FUNCTION compaction_store.finish_import(
    p_thread_uid uuid, p_tenant text, p_last_seq bigint, p_last_number bigint, p_last_pos bigint, p_head bytea
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET work_mem = '64MB'
SET jit = off
AS $$
DECLARE
    v_genesis bytea;
    v_sound boolean;
    v_counts bigint[];
    v_last record;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    -- Only a head at which nothing was ever written: what is there already is not judged, or moved, by this door.
    SELECT h.head INTO v_genesis FROM compaction_store.heads AS h
    WHERE h.thread_uid = p_thread_uid AND h.last_pos = 0 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no import was begun' USING ERRCODE = 'CS008';
    END IF;
    -- Content is hashed before the window, so that it carries narrow rows only.
    SELECT
        array[count(*) FILTER (WHERE r.kind = 'message'), count(*) FILTER (WHERE r.kind = 'compaction'), count(*)],
        bool_and(coalesce(
            r.sound
            AND r.pos = r.place
            AND r.ordinal = CASE r.kind WHEN 'message' THEN r.seq WHEN 'compaction' THEN r.number ELSE 0 END
            AND r.created_at >= r.before_at
            AND r.entry = compaction_store.entry(r.before, r.pos, r.ordinal, r.created_at, r.header, r.commitment),
            false
        ))
    INTO v_counts, v_sound
    FROM (
        SELECT n.*,
            row_number() OVER w AS place,
            count(*) FILTER (WHERE n.kind = 'message') OVER w AS seq,
            count(*) FILTER (WHERE n.kind = 'compaction') OVER w AS number,
            lag(n.entry, 1, v_genesis) OVER w AS before,
            lag(n.created_at, 1, '-infinity') OVER w AS before_at
        FROM (
            SELECT 'message' AS kind, m.pos, m.seq AS ordinal, m.created_at, m.entry, m.commitment,
                compaction_store.message_header(
                    m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.meta_commitment
                ) AS header,
                m.tenant = p_tenant AND CASE
                    WHEN m.redacted_pos IS NULL THEN octet_length(m.salt) = 16
                        AND m.commitment = compaction_store.commitment(m.salt, m.payload::text)
                        AND m.meta_commitment
                            IS NOT DISTINCT FROM compaction_store.meta_commitment(m.salt, m.meta::text)
                    ELSE m.salt IS NULL AND m.payload IS NULL AND m.meta IS NULL
                END AS sound
            FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid
            UNION ALL
            SELECT 'compaction', c.pos, c.number, c.created_at, c.entry, c.commitment,
                compaction_store.compaction_header(c),
                c.tenant = p_tenant AND CASE
                    WHEN c.redacted_pos IS NULL THEN octet_length(c.salt) = 16
                        AND c.commitment = compaction_store.commitment(c.salt, c.body::text)
                    ELSE c.salt IS NULL AND c.body IS NULL
                END
            FROM compaction_store.compactions AS c WHERE c.thread_uid = p_thread_uid
            UNION ALL
            SELECT 'event', e.pos, 0, e.created_at, e.entry, e.commitment,
                compaction_store.event_header(e.kind, e.actor),
                e.tenant = p_tenant AND octet_length(e.salt) = 16
                    AND e.commitment = compaction_store.commitment(e.salt, e.body::text)
            FROM compaction_store.events AS e WHERE e.thread_uid = p_thread_uid
            OFFSET 0
        ) AS n
        WINDOW w AS (ORDER BY n.pos)
    ) AS r;
    IF v_sound IS DISTINCT FROM true OR v_counts IS DISTINCT FROM array[p_last_seq, p_last_number, p_last_pos] THEN
        RAISE EXCEPTION 'the imported rows are no chain' USING ERRCODE = 'CS010';
    END IF;
    -- Erased only by a redaction that stands after.
    IF EXISTS (
        SELECT FROM (
            SELECT m.pos, m.redacted_pos FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.redacted_pos IS NOT NULL
            UNION ALL
            SELECT c.pos, c.redacted_pos FROM compaction_store.compactions AS c
            WHERE c.thread_uid = p_thread_uid AND c.redacted_pos IS NOT NULL
        ) AS r
        WHERE NOT EXISTS (
            SELECT FROM compaction_store.events AS e
            WHERE e.thread_uid = p_thread_uid AND e.pos = r.redacted_pos AND e.pos > r.pos AND e.kind = 'redaction'
        )
    ) THEN
        RAISE EXCEPTION 'rows are erased without a redaction' USING ERRCODE = 'CS010';
    END IF;
    PERFORM compaction_store.refuse_unsound_records(p_thread_uid);

    SELECT e.pos, e.created_at, e.entry INTO STRICT v_last FROM (
        SELECT m.pos, m.created_at, m.entry FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.seq = p_last_seq
        UNION ALL
        SELECT c.pos, c.created_at, c.entry FROM compaction_store.compactions AS c
        WHERE c.thread_uid = p_thread_uid AND c.number = p_last_number
        UNION ALL
        SELECT v.pos, v.created_at, v.entry FROM compaction_store.events AS v
        WHERE v.thread_uid = p_thread_uid AND v.pos = p_last_pos
    ) AS e ORDER BY e.pos DESC LIMIT 1;
    IF v_last.entry IS DISTINCT FROM p_head THEN
        RAISE EXCEPTION 'the imported rows end with another head' USING ERRCODE = 'CS010';
    END IF;
    UPDATE compaction_store.heads AS h
    SET last_seq = p_last_seq, last_number = p_last_number, last_pos = p_last_pos, last_at = v_last.created_at,
        head = p_head, view_tokens = compaction_store.span_tokens(p_thread_uid, p_last_pos, p_last_number, 1, p_last_seq),
        erased_pos = (
            SELECT p_last_pos FROM compaction_store.threads AS t
            WHERE t.thread_uid = p_thread_uid AND t.thread_id = 'erased:' || t.thread_uid
        )
    WHERE h.thread_uid = p_thread_uid;
END
$$;
