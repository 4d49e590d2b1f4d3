-- Returns the last seq that a clear in force with the trigger "hide" covers, or NULL if there is no such clear. The
-- head stores this seq; the thread is hidden as long as it is also the thread's last seq. p_last_number is the last
-- number in the head.
CREATE FUNCTION compaction_store.hidden_seq(p_thread_uid uuid, p_last_number bigint) RETURNS bigint
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_hidden_seq bigint;
BEGIN
    SELECT max(c.end_seq) INTO v_hidden_seq FROM compaction_store.compactions AS c
    WHERE c.thread_uid = p_thread_uid AND c.number <= p_last_number AND c.outcome = 'applied'
        AND c.kind = 'clear' AND c.trigger = 'hide' AND c.redacted_pos IS NULL
        AND NOT EXISTS (
            SELECT FROM compaction_store.compactions AS r
            WHERE r.thread_uid = p_thread_uid AND r.revokes = c.number AND r.outcome = 'applied'
                AND r.number <= p_last_number
        );
    RETURN v_hidden_seq;
END
$$;
