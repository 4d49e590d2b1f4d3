-- Appends one message in one round trip. The first append makes the thread. The key is checked before p_expected_seq,
-- so that a retry after a success is a replay and not a conflict. p_fresh means that the key was made for this call and
-- cannot exist yet. If p_expected_head is given, it must be the thread's head. If p_seen_head is given, it must be the
-- entry at the pos in the receipt. Without p_durable, the commit does not wait for the disk. The function has OUT
-- parameters, because one row costs less than a result set. Here and in most other functions, p_thread_uid may be NULL:
-- the thread is then found by its name.
CREATE FUNCTION compaction_store.append(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_payload text, p_salt bytea, p_role text,
    p_tokens integer, p_counter text, p_key text, p_meta text, p_receipt text, p_expected_seq bigint,
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
    v_at timestamptz;
    v_last_seq bigint;
    v_erased bigint;
    v_xid bigint;
    v_subject text;
    v_seen bigint;
    v_commitment bytea;
    v_meta_commitment bytea;
    v_header bytea;
    v_earlier record;
    v_is_fine boolean;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF (octet_length(p_salt) = 16) IS NOT TRUE THEN
        RAISE EXCEPTION 'a salt must have 16 bytes' USING ERRCODE = 'CS008';
    END IF;
    IF octet_length(p_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'a key must be 1 to 255 bytes of text, not %', octet_length(p_key) USING ERRCODE = 'CS019';
    END IF;
    -- Use an assignment, because PERFORM is slower: it would run the executor.
    v_is_fine := compaction_store.refuse_bad_message(p_payload, p_role, p_meta);
    v_is_fine := compaction_store.refuse_bad_receipt(p_receipt);
    v_commitment := compaction_store.commitment(p_salt, p_payload);
    IF p_meta IS NOT NULL THEN
        v_meta_commitment := compaction_store.meta_commitment(p_salt, p_meta);
    END IF;
    v_header := compaction_store.message_header(
        p_role, p_tokens, p_counter, p_key, NULL, p_receipt, p_actor, session_user, v_meta_commitment
    );
    IF p_thread_uid IS NULL THEN
        SELECT t.thread_uid INTO p_thread_uid
        FROM compaction_store.threads AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
        IF NOT FOUND THEN
            PERFORM compaction_store.refuse_other_seq(p_expected_seq, 0);
            -- A thread that does not exist has no head.
            IF p_expected_head IS NOT NULL THEN
                PERFORM compaction_store.refuse_other_entry(NULL, 0, 0, p_expected_head);
            END IF;
            p_thread_uid := compaction_store.open_thread(p_tenant, p_thread_id, p_subject => p_subject);
        END IF;
    END IF;
    written_uid := p_thread_uid;
    written_login := session_user;
    -- A writer that gets the advisory lock at once need not wait for the row. Other writers, and those whose key must
    -- be looked up, lock the row before they read the clock.
    IF NOT (p_fresh AND pg_try_advisory_xact_lock(uuid_hash_extended(p_thread_uid, 0))) THEN
        PERFORM compaction_store.queue_up(p_thread_uid);
        SELECT h.last_seq, h.erased_pos INTO v_last_seq, v_erased
        FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
        PERFORM compaction_store.refuse_erased(v_erased);
    END IF;
    IF NOT p_fresh AND p_key IS NOT NULL THEN
        SELECT m.seq, m.pos, m.created_at, m.entry, m.call_size, m.salt, m.commitment INTO v_earlier
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = p_thread_uid AND m.key = p_key AND m.seq <= v_last_seq;
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

    v_at := clock_timestamp();
    UPDATE compaction_store.heads AS h
    SET last_seq = h.last_seq + 1, last_pos = h.last_pos + 1, view_tokens = h.view_tokens + p_tokens,
        last_at = compaction_store.next_at(h.last_pos, h.last_at, v_at),
        active_at = compaction_store.next_at(h.last_pos, h.last_at, v_at),
        head = compaction_store.entry(
            h.head, h.last_pos + 1, h.last_seq + 1, compaction_store.next_at(h.last_pos, h.last_at, v_at),
            v_header, v_commitment
        ),
        feed_xid = greatest(h.feed_xid, pg_current_xact_id()::text::bigint)
    WHERE h.thread_uid = p_thread_uid
    RETURNING h.last_seq, h.last_pos, h.last_at, h.head, h.erased_pos, h.subject, h.feed_xid
    INTO first_seq, first_pos, written_at, chain_head, v_erased, v_subject, v_xid;
    IF NOT FOUND THEN
        PERFORM compaction_store.refuse_no_head(p_thread_uid, p_tenant, p_thread_id);
    END IF;
    IF v_erased IS NOT NULL THEN
        PERFORM compaction_store.refuse_erased(v_erased);
    END IF;
    IF p_subject IS NOT NULL THEN
        PERFORM compaction_store.refuse_other_subject(p_subject, v_subject);
    END IF;
    IF p_expected_head IS NOT NULL THEN
        PERFORM compaction_store.refuse_other_entry(p_thread_uid, first_pos - 1, first_seq - 1, p_expected_head);
    END IF;
    IF p_seen_head IS NOT NULL THEN
        v_seen := (p_receipt::json ->> 'pos')::bigint;
        PERFORM compaction_store.refuse_other_entry(
            p_thread_uid, v_seen, CASE WHEN v_seen = first_pos - 1 THEN first_seq - 1 END, p_seen_head
        );
    END IF;
    IF p_expected_seq <> first_seq - 1 THEN
        PERFORM compaction_store.refuse_other_seq(p_expected_seq, first_seq - 1);
    END IF;
    INSERT INTO compaction_store.messages (
        thread_uid, seq, pos, created_at, tokens, tenant, role, counter, key, actor, login, salt, commitment, entry,
        meta_commitment, receipt, meta, payload, feed_xid
    ) VALUES (
        p_thread_uid, first_seq, first_pos, written_at, p_tokens, p_tenant, p_role, p_counter, p_key, p_actor,
        session_user, p_salt, v_commitment, chain_head, v_meta_commitment, p_receipt, p_meta::json, p_payload::json,
        v_xid
    );
    -- Never acknowledge a message that was not stored: a rewrite rule could discard the insert.
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the message was not stored' USING ERRCODE = 'CS010';
    END IF;
    replayed := false;
END
$$;
