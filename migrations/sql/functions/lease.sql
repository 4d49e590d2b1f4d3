-- Gives a run the exclusive right to compact a thread for some seconds, so that only one of many workers pays for a
-- summary. held_until is NULL if the run has the lease now. Otherwise held_until, held_since and holder describe the
-- other run. If the holder dies, its lease expires, and the next run that gets the lease records the attempt of the
-- dead run.
-- last_pos and head are those of the thread now; a view with the same pos and head is still current.
CREATE FUNCTION compaction_store.lease(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_seconds double precision,
    p_actor text DEFAULT NULL::text,
    OUT held_until timestamptz, OUT last_pos bigint, OUT head bytea, OUT held_since timestamptz, OUT holder text
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_head compaction_store.heads;
    v_since timestamptz;
    v_until timestamptz;
BEGIN
    -- Limit the time, because a very long lease would block every other run.
    IF (p_seconds > 0 AND p_seconds <= 3600) IS NOT TRUE THEN
        RAISE EXCEPTION 'a lease must be for more than 0 and at most 3600 seconds' USING ERRCODE = 'CS019';
    END IF;
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    SELECT h.* INTO v_head FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no such thread' USING ERRCODE = 'CS001';
    END IF;
    PERFORM compaction_store.refuse_erased(v_head.erased_pos);
    v_since := clock_timestamp();
    IF v_head.lease_run <> p_run_id THEN
        IF v_head.lease_until > v_since THEN
            held_until := v_head.lease_until;
            held_since := v_head.lease_since;
            holder := v_head.lease_actor;
            last_pos := v_head.last_pos;
            head := v_head.head;
            RETURN;
        END IF;
        v_head := compaction_store.record_abandoned(v_head);
    ELSIF v_head.lease_run = p_run_id THEN
        -- A repeated call keeps the start of the first call.
        v_since := v_head.lease_since;
    END IF;
    last_pos := v_head.last_pos;
    head := v_head.head;
    -- Compute the end first, because Citus accepts no volatile function in an UPDATE.
    v_until := clock_timestamp() + make_interval(secs => p_seconds);
    UPDATE compaction_store.heads AS h
    SET lease_run = p_run_id, lease_since = v_since, lease_until = v_until, lease_actor = p_actor
    WHERE h.thread_uid = p_thread_uid;
END
$$;
