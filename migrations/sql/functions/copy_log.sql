-- Copies the entries of a thread up to a pos into a new thread, after the origin event of the new thread, and returns
-- the new head. Each copy has the same content, salt, commitment, seq and number. Its pos is greater by one, and its
-- time is that of the fork. Its entry is computed from the new chain, and so are the entries that a record refers to.
-- The redacted_pos of rows that were erased after p_at is the pos of the event that the caller writes next. The
-- original chain is recomputed too, so that rows that were changed by hand are refused and do not get a valid chain.
-- The function works in parts, so that memory does not grow with the thread. The caller has locked both heads.
CREATE FUNCTION compaction_store.copy_log(
    p_parent compaction_store.heads, p_at bigint, p_head compaction_store.heads
) RETURNS compaction_store.heads
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
-- The arrays of a part must fit into memory.
SET work_mem = '64MB'
SET jit = off
AS $$
DECLARE
    v_from uuid := p_parent.thread_uid;
    v_to uuid := p_head.thread_uid;
    v_shift bigint := p_head.last_pos;
    v_at_seq bigint := compaction_store.seq_at(v_from, p_at);
    v_at timestamptz := p_head.last_at;
    v_erased_pos bigint := p_at + p_head.last_pos + 1;
    v_pos bigint := 0;
    v_seq bigint := 0;
    v_number bigint := 0;
    v_old bytea := compaction_store.entry_at(v_from, 0);
    v_new bytea := p_head.head;
    v_until bigint;
    v_until_seq bigint;
    v_until_number bigint;
    v_poses bigint[];
    v_ordinals bigint[];
    v_numbers bigint[];
    v_ats timestamptz[];
    v_stored bytea[];
    v_commitments bytea[];
    v_headers bytea[];
    v_entries bytea[];
    v_record compaction_store.compactions;
    v_sound boolean;
    v_count bigint;
BEGIN
    WHILE v_pos < p_at LOOP
        v_until_seq := least(v_seq + 10000, v_at_seq);
        v_until := p_at;
        IF v_until_seq < v_at_seq THEN
            SELECT m.pos INTO v_until FROM compaction_store.messages AS m
            WHERE m.thread_uid = v_from AND m.seq = v_until_seq;
        END IF;
        v_until_number := compaction_store.number_at(v_from, v_until);
        SELECT array_agg(r.pos ORDER BY r.pos), array_agg(r.ordinal ORDER BY r.pos), array_agg(r.number ORDER BY r.pos),
            array_agg(r.created_at ORDER BY r.pos), array_agg(r.entry ORDER BY r.pos),
            array_agg(r.commitment ORDER BY r.pos), array_agg(r.header ORDER BY r.pos), bool_and(coalesce(r.sound, false))
        INTO v_poses, v_ordinals, v_numbers, v_ats, v_stored, v_commitments, v_headers, v_sound
        FROM (
            SELECT m.pos, m.seq AS ordinal, NULL::bigint AS number, m.created_at, m.entry, m.commitment,
                compaction_store.message_header(
                    m.role, m.tokens, m.counter, m.key, m.call_size, m.receipt, m.actor, m.login, m.meta_commitment
                ) AS header,
                m.tenant = p_head.tenant AND CASE
                    WHEN m.redacted_pos IS NULL THEN octet_length(m.salt) = 16
                        AND m.commitment = compaction_store.commitment(m.salt, m.payload::text)
                        AND m.meta_commitment
                            IS NOT DISTINCT FROM compaction_store.meta_commitment(m.salt, m.meta::text)
                    ELSE m.salt IS NULL AND m.payload IS NULL AND m.meta IS NULL
                END AS sound
            FROM compaction_store.messages AS m
            WHERE m.thread_uid = v_from AND m.seq > v_seq AND m.seq <= v_until_seq
            UNION ALL
            SELECT c.pos, c.number, c.number, c.created_at, c.entry, c.commitment,
                compaction_store.compaction_header(ROW(c.*)::compaction_store.compactions),
                c.tenant = p_head.tenant AND CASE
                    WHEN c.redacted_pos IS NULL THEN octet_length(c.salt) = 16
                        AND c.commitment = compaction_store.commitment(c.salt, c.body::text)
                    ELSE c.salt IS NULL AND c.body IS NULL
                END
            FROM compaction_store.compactions AS c
            WHERE c.thread_uid = v_from AND c.number > v_number AND c.number <= v_until_number
            UNION ALL
            SELECT e.pos, 0, NULL, e.created_at, e.entry, e.commitment,
                compaction_store.event_header(e.kind, e.critical, e.actor, e.login),
                e.tenant = p_head.tenant AND octet_length(e.salt) = 16
                    AND e.commitment = compaction_store.commitment(e.salt, e.body::text)
            FROM compaction_store.events AS e
            WHERE e.thread_uid = v_from AND e.pos > v_pos AND e.pos <= v_until
            OFFSET 0
        ) AS r;
        v_sound := coalesce(v_sound, false) AND cardinality(v_poses) = v_until - v_pos;
        v_entries := '{}';
        FOR i IN 1 .. cardinality(v_poses) LOOP
            v_old := compaction_store.entry(
                v_old, v_pos + i, v_ordinals[i], v_ats[i], v_headers[i], v_commitments[i]
            );
            v_sound := v_sound AND v_old = v_stored[i] AND v_poses[i] = v_pos + i;
            IF v_numbers[i] IS NULL THEN
                v_new := compaction_store.entry(
                    v_new, v_shift + v_pos + i, v_ordinals[i], v_at, v_headers[i], v_commitments[i]
                );
            ELSE
                SELECT c.* INTO v_record FROM compaction_store.compactions AS c
                WHERE c.thread_uid = v_from AND c.number = v_numbers[i];
                v_record.thread_uid := v_to;
                v_record.pos := v_shift + v_pos + i;
                v_record.created_at := v_at;
                v_record.redacted_pos := CASE
                    WHEN v_record.redacted_pos > p_at THEN v_erased_pos ELSE v_record.redacted_pos + v_shift
                END;
                IF v_record.source_before IS NOT NULL THEN
                    v_record.source_before := compaction_store.copied_entry(
                        v_from, v_to, v_record.start_seq - 1, v_pos, v_entries
                    );
                END IF;
                IF v_record.source_end IS NOT NULL THEN
                    v_record.source_end := compaction_store.copied_entry(
                        v_from, v_to, v_record.end_seq, v_pos, v_entries
                    );
                END IF;
                v_new := compaction_store.entry(
                    v_new, v_record.pos, v_record.number, v_at, compaction_store.compaction_header(v_record),
                    v_record.commitment
                );
                v_record.entry := v_new;
                INSERT INTO compaction_store.compactions (
                    thread_uid, number, pos, created_at, redacted_pos, start_seq, end_seq, tokens_before, tokens_after,
                    source_count, revokes, run_id, tenant, kind, outcome, callback, trigger, actor, login, model,
                    counter, inputs, source_before, source_end, salt, commitment, entry, body
                ) VALUES (
                    v_record.thread_uid, v_record.number, v_record.pos, v_record.created_at, v_record.redacted_pos,
                    v_record.start_seq, v_record.end_seq, v_record.tokens_before, v_record.tokens_after,
                    v_record.source_count, v_record.revokes, v_record.run_id, v_record.tenant, v_record.kind,
                    v_record.outcome, v_record.callback, v_record.trigger, v_record.actor, v_record.login,
                    v_record.model, v_record.counter, v_record.inputs, v_record.source_before, v_record.source_end,
                    v_record.salt, v_record.commitment, v_record.entry, v_record.body
                );
            END IF;
            v_entries[i] := v_new;
        END LOOP;
        IF v_sound IS NOT TRUE THEN
            RAISE EXCEPTION 'the rows up to pos % were changed after they were written', v_until
                USING ERRCODE = 'CS020';
        END IF;
        INSERT INTO compaction_store.messages (
            thread_uid, tenant, seq, pos, created_at, redacted_pos, tokens, call_size, role, counter, key, actor,
            login, salt, commitment, entry, meta_commitment, receipt, meta, payload
        )
        SELECT
            v_to, m.tenant, m.seq, m.pos + v_shift, v_at,
            CASE WHEN m.redacted_pos > p_at THEN v_erased_pos ELSE m.redacted_pos + v_shift END, m.tokens, m.call_size,
            m.role, m.counter, m.key, m.actor, m.login, m.salt, m.commitment, v_entries[m.pos - v_pos], m.meta_commitment,
            m.receipt, m.meta, m.payload
        FROM compaction_store.messages AS m
        WHERE m.thread_uid = v_from AND m.seq > v_seq AND m.seq <= v_until_seq;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_sound := v_count = v_until_seq - v_seq;
        INSERT INTO compaction_store.events (
            thread_uid, tenant, pos, created_at, kind, critical, actor, login, salt, commitment, entry, body
        )
        SELECT
            v_to, e.tenant, e.pos + v_shift, v_at, e.kind, e.critical, e.actor, e.login, e.salt, e.commitment,
            v_entries[e.pos - v_pos], e.body
        FROM compaction_store.events AS e
        WHERE e.thread_uid = v_from AND e.pos > v_pos AND e.pos <= v_until;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        IF NOT v_sound
            OR v_count <> v_until - v_pos - (v_until_seq - v_seq) - (v_until_number - v_number)
        THEN
            RAISE EXCEPTION 'the copies were not stored' USING ERRCODE = 'CS010';
        END IF;
        v_pos := v_until;
        v_seq := v_until_seq;
        v_number := v_until_number;
    END LOOP;
    UPDATE compaction_store.heads AS h
    SET last_seq = v_seq, last_number = v_number, last_pos = v_shift + p_at, head = v_new
    WHERE h.thread_uid = v_to
    RETURNING h.* INTO p_head;
    RETURN p_head;
END
$$;
