-- Appends for several callers in one commit. Each call is a separate append with its own subtransaction. A call that is
-- refused, or whose thread is locked by another writer, stores nothing and is left out of the result; its caller
-- repeats it alone, and then gets the error or waits. If all calls are for the same thread, they wait for its lock
-- once, together. Otherwise no call waits for the lock of an existing thread, and the first that waits a moment for
-- another transaction to make its thread is left out with all that follow it. p_thread_uids has NULL for a thread that
-- must be found by its name. p_sizes has the number of messages of each call; the lists of messages have the messages
-- of all calls, one call after the other. The calls are sorted by tenant and name, so that two batches that make the
-- same new threads do not deadlock.
CREATE FUNCTION compaction_store.append_together(
    p_thread_uids uuid[], p_tenants text[], p_thread_ids text[], p_sizes integer[], p_counters text[], p_keys text[],
    p_receipts text[], p_expected_seqs bigint[], p_fresh boolean[], p_expected_heads bytea[], p_seen_heads bytea[],
    p_payloads text[], p_salts bytea, p_roles text[], p_tokens integer[], p_metas text[], p_actors text[],
    p_subjects text[], p_durable boolean DEFAULT true
) RETURNS TABLE (
    call integer, first_seq bigint, first_pos bigint, written_at timestamptz, chain_head bytea, replayed boolean,
    written_uid uuid, written_login text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_first integer := 1;
    v_last integer;
    v_thread_uid uuid;
    v_is_one_thread boolean := (
        SELECT count(DISTINCT (c.tenant, c.thread_id)) = 1 FROM unnest(p_tenants, p_thread_ids) AS c (tenant, thread_id)
    );
    v_calls integer := cardinality(p_tenants);
    v_messages integer := (SELECT sum(s) FROM unnest(p_sizes) AS s);
BEGIN
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF v_calls = 0 OR v_calls <> ANY (ARRAY[
        cardinality(p_thread_uids), cardinality(p_thread_ids), cardinality(p_sizes), cardinality(p_counters),
        cardinality(p_keys), cardinality(p_receipts), cardinality(p_expected_seqs), cardinality(p_fresh),
        cardinality(p_expected_heads), cardinality(p_seen_heads), cardinality(p_actors),
        cardinality(p_subjects)
    ]) OR v_messages <> ANY (ARRAY[
        cardinality(p_payloads), octet_length(p_salts) / 16, cardinality(p_roles), cardinality(p_tokens),
        cardinality(p_metas)
    ]) OR 1 > ANY (p_sizes) THEN
        RAISE EXCEPTION 'all lists of an append must have the same length' USING ERRCODE = 'CS008';
    END IF;
    IF v_is_one_thread THEN
        -- Lock the thread here, because each call's subtransaction would release the lock if the call is refused.
        PERFORM set_config('lock_timeout', '5s', true), set_config('compaction_store.tenant', p_tenants[1], true);
        v_thread_uid := coalesce(
            (SELECT u FROM unnest(p_thread_uids) AS u WHERE u IS NOT NULL LIMIT 1),
            compaction_store.find_thread(p_tenants[1], p_thread_ids[1])
        );
        IF v_thread_uid IS NOT NULL THEN
            PERFORM compaction_store.queue_up(v_thread_uid);
            PERFORM FROM compaction_store.heads AS h WHERE h.thread_uid = v_thread_uid FOR UPDATE;
        END IF;
    END IF;
    FOR i IN 1 .. v_calls LOOP
        v_last := v_first + p_sizes[i] - 1;
        BEGIN
            PERFORM set_config('compaction_store.tenant', p_tenants[i], true);
            v_thread_uid := coalesce(p_thread_uids[i], compaction_store.find_thread(p_tenants[i], p_thread_ids[i]));
            IF v_thread_uid IS NULL AND NOT v_is_one_thread THEN
                v_thread_uid := compaction_store.open_thread(p_tenants[i], p_thread_ids[i], p_subject => p_subjects[i]);
            END IF;
            IF v_is_one_thread OR (
                pg_try_advisory_xact_lock(uuid_hash_extended(v_thread_uid, 0))
                AND EXISTS (
                    SELECT FROM compaction_store.heads AS h WHERE h.thread_uid = v_thread_uid FOR UPDATE SKIP LOCKED
                )
            ) THEN
                IF p_sizes[i] = 1 THEN
                    SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed, written_uid, written_login
                    FROM compaction_store.append(
                        v_thread_uid, p_tenants[i], p_thread_ids[i], p_payloads[v_first],
                        substring(p_salts FROM 16 * v_first - 15 FOR 16), p_roles[v_first], p_tokens[v_first],
                        p_counters[i], p_keys[i], p_metas[v_first], p_receipts[i], p_expected_seqs[i], p_fresh[i],
                        p_expected_heads[i], p_seen_heads[i], p_actor => p_actors[i],
                        p_subject => p_subjects[i]
                    );
                ELSE
                    SELECT * INTO first_seq, first_pos, written_at, chain_head, replayed, written_uid, written_login
                    FROM compaction_store.append_many(
                        v_thread_uid, p_tenants[i], p_thread_ids[i], p_payloads[v_first:v_last],
                        substring(p_salts FROM 16 * v_first - 15 FOR 16 * p_sizes[i]), p_roles[v_first:v_last],
                        p_tokens[v_first:v_last], p_counters[i], p_keys[i], p_metas[v_first:v_last], p_receipts[i],
                        p_expected_seqs[i], p_fresh[i], p_expected_heads[i], p_seen_heads[i], p_actor => p_actors[i],
                        p_subject => p_subjects[i]
                    );
                END IF;
                call := i;
                RETURN NEXT;
            END IF;
        EXCEPTION
            WHEN lock_not_available THEN
                RETURN;
            WHEN OTHERS THEN
                -- The call has stored nothing. Its caller repeats it alone and then gets the error.
                NULL;
        END;
        v_first := v_last + 1;
    END LOOP;
END
$$;
