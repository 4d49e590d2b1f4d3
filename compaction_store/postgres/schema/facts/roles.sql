SELECT 'role ' || r.rolname, pg_catalog.concat_ws(', ',
    'there', CASE WHEN r.rolcanlogin THEN 'login' END, CASE WHEN r.rolsuper THEN 'superuser' END,
    CASE WHEN r.rolcreaterole THEN 'createrole' END, CASE WHEN r.rolcreatedb THEN 'createdb' END,
    CASE WHEN r.rolreplication THEN 'replication' END,
    CASE WHEN r.rolbypassrls THEN 'bypassrls' END)
FROM pg_catalog.pg_roles AS r WHERE r.rolname = ANY (:ours)
UNION ALL
SELECT pg_catalog.format('membership of %s in %s', m.rolname, g.rolname), 'there'
FROM pg_catalog.pg_auth_members AS a
JOIN pg_catalog.pg_roles AS m ON m.oid = a.member
JOIN pg_catalog.pg_roles AS g ON g.oid = a.roleid
WHERE m.rolname = ANY (:ours);
