import { Link } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { isRun, type Work } from '../api/client';

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
