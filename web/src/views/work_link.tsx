import { Link } from '@tanstack/react-router';
import type { CSSProperties, ReactNode } from 'react';
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

interface ToProps {
  id: string | null | undefined;
  className?: string;
  style?: CSSProperties;
  children: ReactNode;
}

/** A link to a task or run of which only the id is known; without one, only what it would hold. */
export function WorkTo({ id, className, style, children }: ToProps) {
  if (!id) {
    return (
      <span className={className} style={style}>
        {children}
      </span>
    );
  }
  const to = id.startsWith('run_') ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}';
  return (
    <Link to={to} params={{ id }} className={className} style={style}>
      {children}
    </Link>
  );
}

export const WorkId = ({ id }: { id: string }) => (
  <WorkTo id={id} className="faint mono">
    {shortId(id)}
  </WorkTo>
);
