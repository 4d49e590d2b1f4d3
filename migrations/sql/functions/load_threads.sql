-- Makes several new threads, each with the first chunk of its load, in one commit. A thread that exists is left out of
-- the result, and nothing is stored in it. The caller then loads this thread alone, which also settles a call whose
-- reply was lost. p_sizes has the number of messages of each thread; the lists of messages have those of all threads,
-- one thread after the other. Names are inserted in order, so that two calls that make the same threads do not
-- deadlock.
CREATE FUNCTION compaction_store.load_threads(
    p_tenant text, p_thread_ids text[], p_keys text[], p_sizes integer[], p_payloads text[], p_salts bytea,
    p_roles text[], p_tokens integer[], p_counters text[], p_metas text[],
    p_actor text DEFAULT NULL::text, p_subject text DEFAULT NULL::text
) RETURNS TABLE (thread integer, written_uid uuid)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
-- The arrays of a chunk must fit into memory; otherwise they are spilled to disk.
SET work_mem = '64MB'
SET lock_timeout = '5s'
AS $$
DECLARE
    v_count integer := (SELECT sum(s) FROM unnest(p_sizes) AS s);
    v_made record;
    v_last integer;
    v_head bytea;
    -- These arrays have one value for each message, which stays NULL for threads that are left out.
    v_keys text[];
    v_call_sizes integer[];
    v_uids uuid[];
    v_ats timestamptz[];
    v_seqs bigint[];
    v_commitments bytea[];
    v_meta_commitments bytea[];
    v_headers bytea[];
    v_entries bytea[];
    v_stored bigint := 0;
    v_rows bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    IF (0 < ALL (p_sizes) AND cardinality(p_thread_ids) = ALL (ARRAY[cardinality(p_keys), cardinality(p_sizes)])
        AND v_count = ALL (ARRAY[
            cardinality(p_payloads), octet_length(p_salts) / 16, cardinality(p_roles), cardinality(p_tokens),
            cardinality(p_counters), coalesce(cardinality(p_metas), v_count)
        ])) IS NOT TRUE
    THEN
        RAISE EXCEPTION 'each thread of a load must have a key, and all lists must have the same length'
            USING ERRCODE = 'CS008';
    END IF;
    IF EXISTS (SELECT FROM unnest(p_keys) AS k WHERE (octet_length(k) BETWEEN 1 AND 272) IS NOT TRUE) THEN
        RAISE EXCEPTION 'the key of a chunk must be 1 to 272 bytes of text' USING ERRCODE = 'CS019';
    END IF;
    PERFORM compaction_store.refuse_bad_name(p_tenant, t) FROM unnest(p_thread_ids) AS t;
    PERFORM compaction_store.refuse_bad_message(new.payload, new.role, new.meta)
    FROM ROWS FROM (unnest(p_payloads), unnest(p_roles), unnest(p_metas)) AS new (payload, role, meta);

    -- Fill the arrays first: assigning to an index of a NULL array would make an array that begins at that index.
    v_uids := array_fill(NULL::uuid, ARRAY[v_count]);
    v_ats := array_fill(NULL::timestamptz, ARRAY[v_count]);
    v_seqs := array_fill(NULL::bigint, ARRAY[v_count]);
    v_entries := array_fill(NULL::bytea, ARRAY[v_count]);
    v_last := 0;
    FOR i IN 1 .. cardinality(p_sizes) LOOP
        v_keys[v_last + 1] := p_keys[i];
        v_last := v_last + p_sizes[i];
        v_call_sizes[v_last - p_sizes[i] + 1] := CASE WHEN p_sizes[i] > 1 THEN p_sizes[i] END;
    END LOOP;
    SELECT array_agg(h.commitment ORDER BY h.i), array_agg(h.meta_commitment ORDER BY h.i),
        array_agg(compaction_store.message_header(
            h.role, h.tokens, h.counter, h.key, h.call_size, NULL, p_actor, session_user, h.meta_commitment
        ) ORDER BY h.i)
    INTO v_commitments, v_meta_commitments, v_headers
    FROM (
        SELECT n.i, n.role, n.tokens, n.counter, n.key, n.call_size,
            compaction_store.commitment(n.salt, n.payload) AS commitment,
            CASE WHEN n.meta IS NOT NULL THEN compaction_store.meta_commitment(n.salt, n.meta) END AS meta_commitment
        FROM (
            SELECT new.*, substring(p_salts FROM 16 * new.i::integer - 15 FOR 16) AS salt
            FROM ROWS FROM (
                unnest(p_payloads), unnest(p_roles), unnest(p_tokens), unnest(p_counters), unnest(p_metas),
                unnest(v_keys), unnest(v_call_sizes)
            ) WITH ORDINALITY AS new (payload, role, tokens, counter, meta, key, call_size, i)
            OFFSET 0
        ) AS n
        OFFSET 0
    ) AS h;

    FOR v_made IN
        WITH made AS (
            INSERT INTO compaction_store.threads (thread_uid, tenant, thread_id, salt, commitment, created_at)
            SELECT n.uid, p_tenant, n.name, n.salt, compaction_store.name_commitment(n.salt, n.name), n.born_at
            FROM (
                SELECT b.*, compaction_store.new_thread_uid(b.born_at) AS uid, compaction_store.new_salt() AS salt
                FROM (
                    SELECT t.name, clock_timestamp() AS born_at
                    FROM unnest(p_thread_ids) WITH ORDINALITY AS t (name, i) ORDER BY t.name COLLATE "C"
                    OFFSET 0
                ) AS b
                OFFSET 0
            ) AS n
            ON CONFLICT DO NOTHING
            RETURNING thread_uid, thread_id, created_at, commitment
        )
        SELECT t.i, t.size, t.ends, made.thread_uid, made.created_at,
            compaction_store.genesis(made.thread_uid, p_tenant, made.commitment) AS genesis
        FROM made JOIN (
            SELECT n.name, n.size, n.i, sum(n.size) OVER (ORDER BY n.i) AS ends
            FROM ROWS FROM (unnest(p_thread_ids), unnest(p_sizes)) WITH ORDINALITY AS n (name, size, i)
        ) AS t ON t.name = made.thread_id
    LOOP
        v_head := v_made.genesis;
        v_last := v_made.ends - v_made.size;
        FOR i IN 1 .. v_made.size LOOP
            v_head := compaction_store.entry(
                v_head, i, i, v_made.created_at, v_headers[v_last + i], v_commitments[v_last + i]
            );
            v_entries[v_last + i] := v_head;
            v_uids[v_last + i] := v_made.thread_uid;
            v_ats[v_last + i] := v_made.created_at;
            v_seqs[v_last + i] := i;
        END LOOP;
        v_stored := v_stored + v_made.size;
        thread := v_made.i;
        written_uid := v_made.thread_uid;
        RETURN NEXT;
    END LOOP;
    INSERT INTO compaction_store.heads (
        thread_uid, tenant, last_seq, last_pos, last_at, active_at, subject, head, view_tokens
    )
    SELECT m.uid, p_tenant, count(*), count(*), min(m.at), min(m.at), p_subject,
        (array_agg(m.entry ORDER BY m.seq DESC))[1], sum(m.tokens)
    FROM ROWS FROM (
        unnest(v_uids), unnest(v_seqs), unnest(v_ats), unnest(v_entries), unnest(p_tokens)
    ) AS m (uid, seq, at, entry, tokens)
    WHERE m.uid IS NOT NULL
    GROUP BY m.uid;
    INSERT INTO compaction_store.messages (
        thread_uid, seq, pos, created_at, tokens, call_size, tenant, role, counter, key, actor, login, salt,
        commitment, entry, meta_commitment, meta, payload
    )
    SELECT
        m.uid, m.seq, m.seq, m.at, m.tokens, m.call_size, p_tenant, m.role, m.counter, m.key, p_actor,
        session_user, substring(p_salts FROM 16 * m.i::integer - 15 FOR 16), m.commitment, m.entry, m.meta_commitment, m.meta::json,
        m.payload::json
    FROM ROWS FROM (
        unnest(p_payloads), unnest(p_roles), unnest(p_tokens), unnest(p_counters), unnest(p_metas), unnest(v_keys),
        unnest(v_call_sizes), unnest(v_uids), unnest(v_ats), unnest(v_seqs), unnest(v_commitments),
        unnest(v_meta_commitments), unnest(v_entries)
    ) WITH ORDINALITY AS m (
        payload, role, tokens, counter, meta, key, call_size, uid, at, seq, commitment, meta_commitment, entry, i
    )
    WHERE m.uid IS NOT NULL;
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    IF v_rows <> v_stored THEN
        RAISE EXCEPTION 'the messages were not stored' USING ERRCODE = 'CS010';
    END IF;
END
$$;
