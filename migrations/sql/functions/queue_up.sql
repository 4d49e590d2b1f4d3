-- The queue before a thread's row, for all that lock it: where many append at once, this lock goes from one to the next
-- with less ado than a row's, and who has it at once knows that the row is free. What is written does not rest on it:
-- who waits for long goes on without it, to the row's own lock.
CREATE FUNCTION compaction_store.queue_up(p_thread_uid uuid) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s'
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(uuid_hash_extended(p_thread_uid, 0));
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$$;
