import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { isRun, type Work } from '../api/client';
import { shortId } from '../model/format';

interface Props {
  work: Work;
  tab?: string;
  className?: string;
  children: ReactNode;
}

export function WorkLink({ work, tab, className, children }: Props) {
  const to = isRun(work) ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}';
  return (
    <Link to={to} params={{ id: work.id, tab }} className={className}>
      {children}
    </Link>
  );
}

/** A link to a task or run of which only the id is known. */
export function WorkId({ id }: { id: string }) {
  const to = id.startsWith('run_') ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}';
  return (
    <Link to={to} params={{ id }} className="faint mono">
      {shortId(id)}
    </Link>
  );
}
