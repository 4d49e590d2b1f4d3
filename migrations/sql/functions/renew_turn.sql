-- Extends the lease of a turn and returns its end. A turn whose lease has expired still has the thread if no other turn
-- has taken it.
CREATE FUNCTION compaction_store.renew_turn(
    p_tenant text, p_thread_id text, p_turn_id uuid, p_seconds double precision
) RETURNS timestamptz
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
    v_until := clock_timestamp() + make_interval(secs => p_seconds);
    UPDATE compaction_store.turns AS t SET held_until = greatest(t.held_until, v_until)
    WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id AND t.turn_id = p_turn_id
    RETURNING t.held_until INTO v_until;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the turn is lost' USING ERRCODE = 'CS030';
    END IF;
    RETURN v_until;
END
$$;
