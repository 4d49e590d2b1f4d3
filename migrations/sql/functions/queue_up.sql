-- Waits for an advisory lock that every writer of a thread takes before it locks the row of the head. With many
-- writers, an advisory lock passes from one writer to the next faster than a row lock. A writer that gets it at once
-- also knows that the row is free. Correctness does not depend on this lock: after a second, a writer continues without
-- it and waits for the row lock. A transaction that has queued up for the thread may have the row without this lock, so
-- it must not wait again: the owner of this lock may be waiting for the row.
CREATE FUNCTION compaction_store.queue_up(p_thread_uid uuid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
BEGIN
    IF current_setting('compaction_store.queued_up', true) = p_thread_uid::text THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock(uuid_hash_extended(p_thread_uid, 0));
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    PERFORM set_config('compaction_store.queued_up', p_thread_uid::text, true);
END
$$;
