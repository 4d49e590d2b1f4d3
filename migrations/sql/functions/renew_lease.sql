-- Extends the lease of a run and returns whether the run still has it. A run whose lease has expired still has it if no
-- other run has taken it. The commit does not wait for the disk: a crash may only shorten the lease.
CREATE FUNCTION compaction_store.renew_lease(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_run_id uuid, p_seconds double precision
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_until timestamptz;
BEGIN
    IF (p_seconds > 0 AND p_seconds <= 3600) IS NOT TRUE THEN
        RAISE EXCEPTION 'a lease must be for more than 0 and at most 3600 seconds' USING ERRCODE = 'CS019';
    END IF;
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM set_config('synchronous_commit', 'off', true);
    p_thread_uid := coalesce(p_thread_uid, compaction_store.find_thread(p_tenant, p_thread_id));
    PERFORM compaction_store.queue_up(p_thread_uid);
    -- Compute the end first, because Citus accepts no volatile function in an UPDATE.
    v_until := clock_timestamp() + make_interval(secs => p_seconds);
    UPDATE compaction_store.heads AS h SET lease_until = greatest(h.lease_until, v_until)
    WHERE h.thread_uid = p_thread_uid AND h.lease_run = p_run_id;
    RETURN FOUND;
END
$$;
