-- Appends several messages, all or none. p_salts has 16 bytes for each message. The key belongs to the whole call.
CREATE FUNCTION compaction_store.append_many(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payloads text[], p_salts bytea, p_roles text[],
    p_tokens integer[], p_counter text, p_key text, p_metas text[], p_receipt text, p_expected_seq bigint,
    p_fresh boolean DEFAULT false, p_expected_head bytea DEFAULT NULL::bytea,
    p_seen_head bytea DEFAULT NULL::bytea, p_durable boolean DEFAULT true, p_actor text DEFAULT NULL::text,
    p_subject text DEFAULT NULL::text,
    OUT first_seq bigint, OUT first_pos bigint, OUT written_at timestamptz, OUT chain_head bytea,
    OUT replayed boolean, OUT written_uid uuid, OUT written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
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
    v_seen bigint;
    v_salt bytea;
    v_salts bytea[];
    v_commitments bytea[];
    v_meta_commitments bytea[];
    v_entries bytea[];
    v_earlier record;
    v_same boolean;
    v_is_fine boolean;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF v_count = 0 OR v_count <> ANY (ARRAY[
        octet_length(p_salts) / 16, cardinality(p_roles), cardinality(p_tokens),
        coalesce(cardinality(p_metas), v_count)
    ]) THEN
        RAISE EXCEPTION 'all lists of an append must have the same length' USING ERRCODE = 'CS008';
    END IF;
    IF octet_length(p_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'a key must be 1 to 255 bytes of text, not %', octet_length(p_key) USING ERRCODE = 'CS019';
    END IF;
    v_is_fine := compaction_store.refuse_bad_receipt(p_receipt);
    FOR i IN 1 .. v_count LOOP
        -- Use an assignment, because PERFORM is slower: it would run the executor.
        v_is_fine := compaction_store.refuse_bad_message(p_payloads[i], p_roles[i], p_metas[i]);
    END LOOP;
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    IF p_thread_uid IS NULL THEN
        PERFORM compaction_store.refuse_other_seq(p_expected_seq, 0);
        -- A thread that does not exist has no head.
        IF p_expected_head IS NOT NULL THEN
            PERFORM compaction_store.refuse_other_entry(NULL, 0, 0, p_expected_head);
        END IF;
        p_thread_uid := compaction_store.open_thread(p_tenant, p_thread_id, p_subject => p_subject);
    END IF;
    written_uid := p_thread_uid;
    written_login := session_user;
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.last_seq, h.last_pos, h.head, h.last_at, h.erased_pos, h.subject
    INTO v_seq, v_pos, v_head, v_at, v_erased, v_subject
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
    IF v_erased IS NOT NULL THEN
        PERFORM compaction_store.refuse_erased(v_erased);
    END IF;

    IF NOT p_fresh AND p_key IS NOT NULL THEN
        SELECT m.seq, m.pos, m.created_at, m.call_size INTO v_earlier
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.key = p_key AND m.seq <= v_seq;
        IF FOUND THEN
            SELECT coalesce(bool_and(
                m.salt IS NOT NULL AND compaction_store.commitment(m.salt, p.payload) = m.commitment
            ), false) AND count(*) = v_count INTO v_same
            FROM unnest(p_payloads) WITH ORDINALITY AS p (payload, i)
            JOIN compaction_store.messages AS m
                ON m.thread_uid = p_thread_uid AND m.seq = v_earlier.seq + p.i - 1;
            IF v_earlier.call_size IS DISTINCT FROM v_count OR NOT v_same THEN
                RAISE EXCEPTION 'the key was used for seq %', v_earlier.seq
                    USING ERRCODE = 'CS002', DETAIL = v_earlier.seq::text;
            END IF;
            SELECT m.entry INTO chain_head FROM compaction_store.messages AS m
            WHERE m.thread_uid = p_thread_uid AND m.seq = v_earlier.seq + v_count - 1;
            first_seq := v_earlier.seq;
            first_pos := v_earlier.pos;
            written_at := v_earlier.created_at;
            replayed := true;
            RETURN;
        END IF;
    END IF;
    PERFORM compaction_store.refuse_other_subject(p_subject, v_subject);
    IF p_expected_head IS NOT NULL THEN
        PERFORM compaction_store.refuse_other_entry(p_thread_uid, v_pos, v_seq, p_expected_head);
    END IF;
    IF p_seen_head IS NOT NULL THEN
        v_seen := (p_receipt::json ->> 'pos')::bigint;
        PERFORM compaction_store.refuse_other_entry(
            p_thread_uid, v_seen, CASE WHEN v_seen = v_pos THEN v_seq END, p_seen_head
        );
    END IF;
    PERFORM compaction_store.refuse_other_seq(p_expected_seq, v_seq);

    v_at := compaction_store.next_at(v_pos, v_at, clock_timestamp());
    FOR i IN 1 .. v_count LOOP
        v_salt := substring(p_salts FROM 16 * i - 15 FOR 16);
        v_salts[i] := v_salt;
        v_commitments[i] := compaction_store.commitment(v_salt, p_payloads[i]);
        v_meta_commitments[i] := CASE
            WHEN p_metas[i] IS NOT NULL THEN compaction_store.meta_commitment(v_salt, p_metas[i])
        END;
        v_head := compaction_store.entry(
            v_head, v_pos + i, v_seq + i, v_at,
            compaction_store.message_header(
                p_roles[i], p_tokens[i], p_counter,
                CASE WHEN i = 1 THEN p_key END, CASE WHEN i = 1 THEN v_count END,
                p_receipt, p_actor, session_user, v_meta_commitments[i]
            ),
            v_commitments[i]
        );
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
        commitment, entry, meta_commitment, receipt, meta, payload, feed_xid
    )
    SELECT
        p_thread_uid, v_seq + i, v_pos + i, v_at, tokens, CASE WHEN i = 1 THEN v_count END, p_tenant, role, p_counter,
        CASE WHEN i = 1 THEN p_key END, p_actor, session_user, salt, commitment, entry, meta_commitment, p_receipt,
        meta::json, payload::json, v_xid
    FROM ROWS FROM (
        unnest(p_payloads), unnest(v_salts), unnest(p_roles), unnest(p_tokens), unnest(p_metas),
        unnest(v_commitments), unnest(v_meta_commitments), unnest(v_entries)
    ) WITH ORDINALITY AS new (payload, salt, role, tokens, meta, commitment, meta_commitment, entry, i);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count <> cardinality(p_payloads) THEN
        RAISE EXCEPTION 'the messages were not stored' USING ERRCODE = 'CS010';
    END IF;
    first_seq := v_seq + 1;
    first_pos := v_pos + 1;
    written_at := v_at;
    chain_head := v_head;
    replayed := false;
END
$$;
