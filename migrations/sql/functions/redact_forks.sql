-- Finds the forks of a thread that have copies of some of its messages, and the forks of these forks. With p_reaches,
-- it erases the copies and every record of a fork that may repeat them, with one event in each fork. p_dry_run has the
-- same meaning as for redact. Returns a JSON list with one object for each fork that has or had copies, in the order in
-- which the forks were made. The salt of a fork's event is derived from p_salt and the fork's thread_uid, so that a
-- retry finds the event. If a fork is not in this database, its forks are found by their origins, except on a cluster;
-- of them, and of their forks, only messages with the commitments of this thread's messages are erased. The caller has
-- locked the thread's head; this function locks the heads of forks, parents before children.
CREATE FUNCTION compaction_store.redact_forks(
    p_thread_uid uuid, p_wanted int8multirange, p_actor text, p_salt bytea, p_body text, p_insist boolean,
    p_reaches boolean, p_dry_run boolean
) RETURNS json
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_queue uuid[] := ARRAY[p_thread_uid];
    v_until bigint[] := ARRAY[NULL::bigint];
    v_is_here boolean[] := ARRAY[true];
    -- For a fork that is not here and all forks below it: the nearest thread above it that is here.
    v_above uuid[] := ARRAY[NULL::uuid];
    v_tenant text := (SELECT h.tenant FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid);
    v_found json[] := '{}';
    v_children uuid[];
    v_untils bigint[];
    v_forks_at bigint[];
    v_forks_heads bytea[];
    v_child uuid;
    v_child_until bigint;
    v_forked_at bigint;
    v_forked_head bytea;
    v_copied_seq bigint;
    v_origin text[];
    v_last_pos bigint;
    v_name text;
    v_salt bytea;
    v_copied bigint;
    v_holds bigint[];
    v_forbidding bigint[];
    v_pos bigint;
    v_why text;
    v_head compaction_store.heads;
    v_done record;
    v_is_distributed boolean := compaction_store.is_distributed();
BEGIN
    FOR i IN 1 .. 1000000 LOOP
        EXIT WHEN i > cardinality(v_queue);
        v_copied := compaction_store.copied_to(v_queue[i]);
        SELECT h.last_pos INTO v_last_pos FROM compaction_store.heads AS h WHERE h.thread_uid = v_queue[i];
        IF v_is_here[i] THEN
            SELECT array_agg(f.child ORDER BY e.pos), array_agg(f.at_seq ORDER BY e.pos),
                array_agg(f.at_pos ORDER BY e.pos), array_agg(f.head ORDER BY e.pos)
            INTO v_children, v_untils, v_forks_at, v_forks_heads
            FROM compaction_store.events AS e CROSS JOIN LATERAL compaction_store.fork_of(e.body::text) AS f
            WHERE e.thread_uid = v_queue[i] AND e.pos > v_copied AND e.pos <= v_last_pos AND e.kind = 'fork'
                AND f.child IS NOT NULL;
        ELSE
            SELECT array_agg(e.thread_uid ORDER BY e.thread_uid) INTO v_children FROM compaction_store.events AS e
            WHERE e.tenant = v_tenant AND e.pos = 1 AND e.kind = 'origin' AND EXISTS (
                SELECT FROM compaction_store.events AS o
                WHERE o.thread_uid = e.thread_uid AND o.kind = 'origin'
                    AND starts_with(o.body::text, format('{"parent":"%s"', v_queue[i]))
            );
            v_untils := NULL;
            v_forks_at := NULL;
            v_forks_heads := NULL;
        END IF;
        FOR v_child, v_child_until, v_forked_at, v_forked_head IN
            SELECT n.* FROM unnest(v_children, v_untils, v_forks_at, v_forks_heads) AS n
        LOOP
            CONTINUE WHEN v_child = ANY (v_queue);
            -- A cluster makes forks in the shards of their parents, but an imported fork may be on another node, or
            -- missing.
            IF v_is_distributed THEN
                IF NOT compaction_store.is_beside(p_thread_uid, v_child) THEN
                    CONTINUE WHEN p_reaches IS FALSE;
                    RAISE EXCEPTION
                        'the fork % is not in the shard of this thread: redact it by itself, then pass forks=False', v_child
                        USING ERRCODE = 'CS015';
                END IF;
            END IF;
            PERFORM compaction_store.queue_up(v_child);
            SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = v_child FOR UPDATE;
            IF NOT FOUND AND NOT v_is_distributed THEN
                v_queue := v_queue || v_child;
                v_until := v_until || least(v_until[i], v_child_until);
                v_is_here := v_is_here || false;
                v_above := v_above || coalesce(v_above[i], v_queue[i]);
                CONTINUE;
            END IF;
            CONTINUE WHEN v_head.thread_uid IS NULL;
            -- An imported thread can name any thread as its fork, and can have the key of an absent parent. So the fork
            -- must name this thread as its parent, this thread must have the entry that the fork was made at, and the
            -- fork must have the entry that it had when it was made. It ended then with at most one redaction, one hold
            -- or release, and one retention after the copies.
            SELECT regexp_match(
                e.body::text,
                format(
                    '^[{]"parent":"%s","pos":([0-9]{1,18}),"seq":([0-9]{1,18}),"entry":"([0-9a-f]{64})"',
                    CASE WHEN v_is_here[i] THEN v_queue[i]::text ELSE '[0-9a-f-]{36}' END
                )
            ) INTO v_origin
            FROM compaction_store.events AS e WHERE e.thread_uid = v_child AND e.pos = 1 AND e.kind = 'origin';
            CONTINUE WHEN v_origin IS NULL OR v_is_here[i] AND (
                compaction_store.entry_at(v_queue[i], v_origin[1]::bigint) IS DISTINCT FROM decode(v_origin[3], 'hex')
                OR NOT EXISTS (
                    SELECT FROM generate_series(v_forked_at + 1, v_forked_at + 4) AS p (pos)
                    WHERE compaction_store.entry_at(v_child, p.pos) = v_forked_head
                ));
            v_copied_seq := v_origin[2]::bigint;
            v_child_until := least(v_until[i], v_child_until, v_copied_seq);
            v_queue := v_queue || v_child;
            v_until := v_until || v_child_until;
            v_is_here := v_is_here || true;
            v_above := v_above || v_above[i];
            v_salt := substring(sha256(p_salt || uuid_send(v_child)) FOR 16);
            SELECT r.event_pos, r.seqs, r.numbers INTO v_done
            FROM compaction_store.redacted_by(v_child, v_head.last_pos, v_salt) AS r;
            IF v_done.event_pos IS NULL THEN
                SELECT range_agg(int8range(m.seq, m.seq, '[]')) INTO v_done.seqs
                FROM (
                    SELECT lower(r), upper(r)
                    FROM unnest(p_wanted * int8multirange(int8range(1, v_child_until, '[]'))) AS r OFFSET 0
                ) AS w (first, last)
                CROSS JOIN LATERAL (
                    SELECT g.seq FROM compaction_store.messages AS g
                    WHERE g.thread_uid = v_child AND g.seq >= w.first AND g.seq < w.last AND g.redacted_pos IS NULL
                        AND (v_above[i] IS NULL OR EXISTS (
                            SELECT FROM compaction_store.messages AS o
                            WHERE o.thread_uid = v_above[i] AND o.seq = g.seq AND o.commitment = g.commitment
                        ))
                    OFFSET 0
                ) AS m;
                CONTINUE WHEN v_done.seqs IS NULL;
                v_done.numbers := '{}';
                IF p_reaches THEN
                    v_holds := compaction_store.in_hold(v_child, v_head.last_pos);
                    v_forbidding := compaction_store.in_hold(v_child, v_head.last_pos, p_insist);
                    SELECT w.* INTO v_pos, v_why FROM compaction_store.why_held(v_child, v_forbidding) AS w;
                    IF v_pos IS NOT NULL THEN
                        RAISE EXCEPTION 'the fork % is %', v_child, v_why USING ERRCODE = 'CS013', DETAIL = v_pos::text;
                    END IF;
                    v_done.numbers := compaction_store.derived_records(v_child, v_done.seqs);
                    IF p_dry_run IS FALSE THEN
                        v_done.event_pos := compaction_store.erase_content(
                            v_head, p_actor, v_salt,
                            format(
                                '{"parent":"%s",%s', p_thread_uid,
                                substring(compaction_store.redaction_body(p_body, v_holds) FROM 2)
                            ),
                            v_done.seqs, v_done.numbers
                        );
                    END IF;
                END IF;
            END IF;
            SELECT t.thread_id INTO v_name FROM compaction_store.threads AS t WHERE t.thread_uid = v_child;
            v_found := v_found || json_build_object(
                'thread_uid', v_child, 'thread_id', v_name, 'pos', v_done.event_pos,
                'seqs', compaction_store.ranges(v_done.seqs)::json,
                'records', compaction_store.ranges(v_done.numbers)::json
            );
        END LOOP;
    END LOOP;
    RETURN array_to_json(v_found);
END
$$;
