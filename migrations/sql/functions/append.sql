-- Appends one message: one call, one round trip. The key is judged before expected_seq, so that a retry after a
-- success is a replay; the time is taken under the row lock and never goes back. One row of OUT parameters costs less
-- than a table.
CREATE FUNCTION compaction_store.append(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payload text, p_salt bytea, p_role text,
    p_tokens integer, p_counter text, p_key text, p_meta text, p_receipt text, p_expected_seq bigint,
    OUT first_seq bigint, OUT first_pos bigint, OUT written_at timestamptz, OUT chain_head bytea,
    OUT replayed boolean
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_seq bigint;
    v_pos bigint;
    v_head bytea;
    v_at timestamptz;
    v_erased bigint;
    v_commitment bytea;
    v_meta_commitment bytea;
    v_earlier record;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    SELECT h.last_seq, h.last_pos, h.head, h.last_at, h.erased_pos INTO v_seq, v_pos, v_head, v_at, v_erased
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        IF p_expected_seq > 0 THEN
            RAISE EXCEPTION 'expected seq % and found none', p_expected_seq USING ERRCODE = 'CS003', DETAIL = '0';
        END IF;
        PERFORM compaction_store.open_thread(p_thread_uid, p_tenant, p_thread_id);
        SELECT h.last_seq, h.last_pos, h.head, h.last_at INTO STRICT v_seq, v_pos, v_head, v_at
        FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    END IF;
    IF v_erased IS NOT NULL THEN
        PERFORM compaction_store.refuse_erased(v_erased);
    END IF;

    IF p_key IS NOT NULL THEN
        SELECT m.seq, m.pos, m.created_at, m.entry, m.call_size, m.salt, m.commitment INTO v_earlier
        FROM compaction_store.messages AS m WHERE m.thread_uid = p_thread_uid AND m.key = p_key;
        IF FOUND THEN
            IF v_earlier.call_size IS NOT NULL OR v_earlier.salt IS NULL
                OR compaction_store.commitment(v_earlier.salt, p_payload) <> v_earlier.commitment
            THEN
                RAISE EXCEPTION 'the key was used for seq %', v_earlier.seq
                    USING ERRCODE = 'CS002', DETAIL = v_earlier.seq::text;
            END IF;
            first_seq := v_earlier.seq;
            first_pos := v_earlier.pos;
            written_at := v_earlier.created_at;
            chain_head := v_earlier.entry;
            replayed := true;
            RETURN;
        END IF;
    END IF;
    IF p_expected_seq <> v_seq THEN
        RAISE EXCEPTION 'expected seq % and found %', p_expected_seq, v_seq
            USING ERRCODE = 'CS003', DETAIL = v_seq::text;
    END IF;

    IF (octet_length(p_salt) = 16) IS NOT TRUE THEN
        RAISE EXCEPTION 'a salt is 16 bytes' USING ERRCODE = 'CS008';
    END IF;
    v_seq := v_seq + 1;
    v_pos := v_pos + 1;
    v_at := CASE WHEN v_pos = 1 THEN v_at ELSE greatest(clock_timestamp(), v_at) END;
    v_commitment := compaction_store.commitment(p_salt, p_payload);
    IF p_meta IS NOT NULL THEN
        v_meta_commitment := compaction_store.meta_commitment(p_salt, p_meta);
    END IF;
    v_head := compaction_store.entry(
        v_head, v_pos, v_seq, v_at,
        compaction_store.message_header(p_role, p_tokens, p_counter, p_key, NULL, p_receipt, v_meta_commitment),
        v_commitment
    );
    UPDATE compaction_store.heads AS h
    SET last_seq = v_seq, last_pos = v_pos, last_at = v_at, head = v_head, view_tokens = h.view_tokens + p_tokens
    WHERE h.thread_uid = p_thread_uid;
    INSERT INTO compaction_store.messages (
        thread_uid, seq, pos, created_at, tokens, tenant, role, counter, key, salt, commitment, entry,
        meta_commitment, receipt, meta, payload
    ) VALUES (
        p_thread_uid, v_seq, v_pos, v_at, p_tokens, p_tenant, p_role, p_counter, p_key, p_salt, v_commitment, v_head,
        v_meta_commitment, p_receipt, p_meta::json, p_payload::json
    );
    -- A rule that discards inserts would otherwise have us acknowledge what was never stored.
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the message was not stored' USING ERRCODE = 'CS010';
    END IF;
    first_seq := v_seq;
    first_pos := v_pos;
    written_at := v_at;
    chain_head := v_head;
    replayed := false;
END
$$;
