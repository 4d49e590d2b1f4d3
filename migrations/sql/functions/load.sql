-- Appends one chunk of a load, all or none. Unlike append_many, it takes a counter for each message. If a chunk is
-- already stored under the key, it returns the first seq and the size of that chunk, and the caller compares the
-- messages. Hashes that do not depend on the thread's head are computed before the head is locked.
CREATE FUNCTION compaction_store.load(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payloads text[], p_salts bytea, p_roles text[],
    p_tokens integer[], p_counters text[], p_metas text[], p_key text, p_expected_seq bigint,
    p_actor text DEFAULT NULL::text, p_subject text DEFAULT NULL::text,
    OUT first_seq bigint, OUT size integer, OUT replayed boolean, OUT written_uid uuid
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
-- The arrays of a chunk must fit into memory; otherwise they are spilled to disk.
SET work_mem = '64MB'
SET lock_timeout = '5s'
AS $$
DECLARE
    v_count integer := cardinality(p_payloads);
    v_seq bigint;
    v_pos bigint;
    v_head bytea;
    v_at timestamptz;
    v_erased bigint;
    v_xid bigint;
    v_subject text;
    v_salts bytea[];
    v_headers bytea[];
    v_commitments bytea[];
    v_meta_commitments bytea[];
    v_entries bytea[];
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF p_key IS NULL OR (v_count > 0 AND v_count = ALL (ARRAY[
        octet_length(p_salts) / 16, cardinality(p_roles), cardinality(p_tokens), cardinality(p_counters),
        coalesce(cardinality(p_metas), v_count)
    ])) IS NOT TRUE THEN
        RAISE EXCEPTION 'a load must have a key, and all its lists must have the same length' USING ERRCODE = 'CS008';
    END IF;
    IF octet_length(p_key) NOT BETWEEN 1 AND 272 THEN
        RAISE EXCEPTION 'the key of a chunk must be 1 to 272 bytes of text, not %', octet_length(p_key)
            USING ERRCODE = 'CS019';
    END IF;
    PERFORM compaction_store.refuse_bad_message(new.payload, new.role, new.meta)
    FROM ROWS FROM (unnest(p_payloads), unnest(p_roles), unnest(p_metas)) AS new (payload, role, meta);
    SELECT array_agg(h.salt ORDER BY h.i), array_agg(h.commitment ORDER BY h.i),
        array_agg(h.meta_commitment ORDER BY h.i),
        array_agg(compaction_store.message_header(
            h.role, h.tokens, h.counter, CASE WHEN h.i = 1 THEN p_key END,
            CASE WHEN h.i = 1 AND v_count > 1 THEN v_count END, NULL, p_actor, session_user,
            h.meta_commitment
        ) ORDER BY h.i)
    INTO v_salts, v_commitments, v_meta_commitments, v_headers
    FROM (
        SELECT n.i, n.salt, n.role, n.tokens, n.counter,
            compaction_store.commitment(n.salt, n.payload) AS commitment,
            CASE WHEN n.meta IS NOT NULL THEN compaction_store.meta_commitment(n.salt, n.meta) END AS meta_commitment
        FROM (
            SELECT new.*, substring(p_salts FROM 16 * new.i::integer - 15 FOR 16) AS salt
            FROM ROWS FROM (
                unnest(p_payloads), unnest(p_roles), unnest(p_tokens), unnest(p_counters), unnest(p_metas)
            ) WITH ORDINALITY AS new (payload, role, tokens, counter, meta, i)
            OFFSET 0
        ) AS n
        OFFSET 0
    ) AS h;

    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    IF p_thread_uid IS NULL THEN
        PERFORM compaction_store.refuse_other_seq(p_expected_seq, 0);
        p_thread_uid := compaction_store.open_thread(p_tenant, p_thread_id, p_subject => p_subject);
    END IF;
    written_uid := p_thread_uid;
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.last_seq, h.last_pos, h.head, h.last_at, h.erased_pos, h.subject
    INTO v_seq, v_pos, v_head, v_at, v_erased, v_subject
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
    PERFORM compaction_store.refuse_erased(v_erased);
    SELECT m.seq, coalesce(m.call_size, 1) INTO first_seq, size
    FROM compaction_store.messages AS m
    WHERE m.thread_uid = p_thread_uid AND m.key = p_key AND m.seq <= v_seq;
    replayed := FOUND;
    IF replayed THEN
        RETURN;
    END IF;
    PERFORM compaction_store.refuse_other_subject(p_subject, v_subject);
    PERFORM compaction_store.refuse_other_seq(p_expected_seq, v_seq);

    v_at := compaction_store.next_at(v_pos, v_at, clock_timestamp());
    FOR i IN 1 .. v_count LOOP
        v_head := compaction_store.entry(v_head, v_pos + i, v_seq + i, v_at, v_headers[i], v_commitments[i]);
        v_entries[i] := v_head;
    END LOOP;
    UPDATE compaction_store.heads AS h
    SET last_seq = v_seq + v_count, last_pos = v_pos + v_count, last_at = v_at, active_at = v_at, head = v_head,
        view_tokens = h.view_tokens + (SELECT sum(t) FROM unnest(p_tokens) AS t),
        feed_xid = greatest(h.feed_xid, pg_current_xact_id()::text::bigint)
    WHERE h.thread_uid = p_thread_uid
    RETURNING h.feed_xid INTO v_xid;
    INSERT INTO compaction_store.messages (
        thread_uid, seq, pos, created_at, tokens, call_size, tenant, role, counter, key, actor, login, salt,
        commitment, entry, meta_commitment, meta, payload, feed_xid
    )
    SELECT
        p_thread_uid, v_seq + i, v_pos + i, v_at, tokens, CASE WHEN i = 1 AND v_count > 1 THEN v_count END, p_tenant,
        role, counter, CASE WHEN i = 1 THEN p_key END, p_actor, session_user, salt, commitment, entry, meta_commitment,
        meta::json, payload::json, v_xid
    FROM ROWS FROM (
        unnest(p_payloads), unnest(v_salts), unnest(p_roles), unnest(p_tokens), unnest(p_counters), unnest(p_metas),
        unnest(v_commitments), unnest(v_meta_commitments), unnest(v_entries)
    ) WITH ORDINALITY AS new (payload, salt, role, tokens, counter, meta, commitment, meta_commitment, entry, i);
    GET DIAGNOSTICS size = ROW_COUNT;
    IF size <> v_count THEN
        RAISE EXCEPTION 'the messages were not stored' USING ERRCODE = 'CS010';
    END IF;
    first_seq := v_seq + 1;
END
$$;
