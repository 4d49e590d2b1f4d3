-- Ends a turn or its wait, and returns whether the turn had the thread until now. When no turn has the thread or waits
-- for it, the row is deleted.
CREATE FUNCTION compaction_store.leave_turn(p_tenant text, p_thread_id text, p_turn_id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_turn record;
    v_waiting uuid[];
    v_until timestamptz[];
    v_mine integer;
    v_had boolean;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT t.turn_id, t.held_until, t.waiting, t.waiting_until INTO v_turn
    FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    v_had := v_turn.turn_id IS NOT DISTINCT FROM p_turn_id;
    SELECT w.turns, w.until, array_position(w.turns, p_turn_id) INTO v_waiting, v_until, v_mine
    FROM compaction_store.live_turns(v_turn.waiting, v_turn.waiting_until, p_turn_id) AS w;
    IF v_mine IS NOT NULL THEN
        v_waiting := v_waiting[1:(v_mine - 1)] || v_waiting[v_mine + 1:];
        v_until := v_until[1:(v_mine - 1)] || v_until[v_mine + 1:];
    END IF;
    IF cardinality(v_waiting) = 0 AND (v_had OR (v_turn.held_until > clock_timestamp()) IS NOT TRUE) THEN
        DELETE FROM compaction_store.turns AS t WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
        RETURN v_had;
    END IF;
    UPDATE compaction_store.turns AS t
    SET waiting = v_waiting, waiting_until = v_until,
        turn_id = CASE WHEN NOT v_had THEN t.turn_id END,
        held_since = CASE WHEN NOT v_had THEN t.held_since END,
        held_until = CASE WHEN NOT v_had THEN t.held_until END,
        actor = CASE WHEN NOT v_had THEN t.actor END,
        login = CASE WHEN NOT v_had THEN t.login END
    WHERE t.tenant = p_tenant AND t.thread_id = p_thread_id;
    RETURN v_had;
END
$$;
