-- Returns the commitment to the name of a thread. After the salt is erased, nobody can confirm a guess at the name.
CREATE FUNCTION compaction_store.name_commitment(p_salt bytea, p_thread_id text) RETURNS bytea
LANGUAGE sql STABLE
AS $$
    SELECT pg_catalog.sha256(E'\\x03'::bytea || p_salt || pg_catalog.convert_to(p_thread_id, 'UTF8'))
$$;
