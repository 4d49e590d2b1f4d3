-- Returns a stored JSON text as jsonb for the audit views. NUL and lone surrogates, which jsonb does not allow, become
-- U+FFFD. Returns NULL if Postgres cannot represent the text. Also returns NULL if a number would have more digits than
-- Python reads; jsonb writes a number such as 1e5000 with all its digits. Never raises an error, so that one row cannot
-- hide the others. IMMUTABLE, because Citus does not allow other functions in the subqueries of views.
CREATE FUNCTION compaction_store.audit_json(p_text text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_text text := p_text;
    v_found jsonb;
BEGIN
    IF strpos(v_text, E'\\u') > 0 THEN
        -- Afterwards no backslash is escaped by another backslash, so every backslash begins an escape.
        v_text := replace(v_text, E'\\\\', E'\\u005c');
        v_text := regexp_replace(v_text, E'\\\\u0000', E'\\\\ufffd', 'g');
        v_text := regexp_replace(
            v_text, E'\\\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\\\u[dD][c-fC-F][0-9a-fA-F]{2})', E'\\\\ufffd', 'g'
        );
        v_text := regexp_replace(
            v_text, E'(?<!\\\\u[dD][89abAB][0-9a-fA-F]{2})\\\\u[dD][c-fC-F][0-9a-fA-F]{2}', E'\\\\ufffd', 'g'
        );
    END IF;
    v_found := v_text::jsonb;
    IF v_text ~ '[0-9][eE][+]?[0-9]|[0-9]{255}' AND EXISTS (
        SELECT FROM regexp_matches(regexp_replace(v_found::text, '"([^"\\]|\\.)*"', '', 'g'), '[0-9]+', 'g') AS n (digits)
        WHERE length(n.digits[1]) > 4300
    ) THEN
        RETURN NULL;
    END IF;
    RETURN v_found;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
