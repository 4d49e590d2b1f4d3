-- Returns the time of a thread's next entry, which is never before that of the last entry. The first entry has the time
-- of the thread's creation.
CREATE FUNCTION compaction_store.next_at(p_last_pos bigint, p_last_at timestamptz, p_now timestamptz)
RETURNS timestamptz
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_last_pos = 0 THEN p_last_at ELSE greatest(p_now, p_last_at) END
$$;
