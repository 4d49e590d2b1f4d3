-- Returns whether a retention is locked, from the start of its event's body: it can then only be made longer.
CREATE FUNCTION compaction_store.is_locked(p_body text) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT p_body ~ '^[{]"until":"[^"]{27}","locked"[:]true[,}]'
$$;
