-- Locks a thread for the loader until its transaction ends, and tells where its chain stands. What was stored under the
-- chunk's key is found under the lock; it is judged before expected_seq, as by append.
CREATE FUNCTION compaction_store.begin_load(
    p_thread_uid uuid, p_tenant text, p_thread_id text, p_key text, p_expected_seq bigint,
    OUT last_seq bigint, OUT last_pos bigint, OUT chain_head bytea, OUT at_microseconds bigint,
    OUT found_seq bigint, OUT found_size integer
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET lock_timeout = '5s'
AS $$
DECLARE
    v_at timestamptz;
    v_erased bigint;
BEGIN
    PERFORM set_config('compaction_store.tenant', p_tenant, true);
    PERFORM compaction_store.queue_up(p_thread_uid);
    PERFORM compaction_store.open_thread(p_thread_uid, p_tenant, p_thread_id);
    SELECT h.last_seq, h.last_pos, h.head, h.last_at, h.erased_pos
    INTO STRICT last_seq, last_pos, chain_head, v_at, v_erased
    FROM compaction_store.heads AS h WHERE h.thread_uid = p_thread_uid FOR UPDATE;
    PERFORM compaction_store.refuse_erased(v_erased);
    at_microseconds := compaction_store.microseconds(compaction_store.next_at(last_pos, v_at, clock_timestamp()));
    SELECT m.seq, coalesce(m.call_size, 1) INTO found_seq, found_size
    FROM compaction_store.messages AS m
    WHERE m.thread_uid = p_thread_uid AND m.key = p_key AND m.seq <= begin_load.last_seq;
    IF found_seq IS NULL AND p_expected_seq <> last_seq THEN
        RAISE EXCEPTION 'expected seq % and found %', p_expected_seq, last_seq
            USING ERRCODE = 'CS003', DETAIL = last_seq::text;
    END IF;
END
$$;
